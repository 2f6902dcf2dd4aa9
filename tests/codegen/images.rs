//! Every golden source, compiled for its target: resources, the program's hash, the lint over its PTX.

use std::time::Instant;

use amk::image::{Budget, check_budget, inspect, symbol_bytes};
use amk::lint::check_ptx;
use amk::target::default_targets;
use rayon::prelude::*;

use crate::lint::expected;
use crate::support::{Kernel, drawn, kernels, nvrtc, pool};

/// What is wrong with a golden source and its image.
fn faults(kernel: &Kernel) -> Vec<String> {
    let compiled = match kernel.compiled() {
        Ok(compiled) => compiled,
        Err(error) => return vec![error],
    };
    let mut faults = Vec::new();
    let report = compiled.report();
    if report.spill_bytes() > 0 {
        faults.push(format!("{} bytes of registers are spilled", report.spill_bytes()));
    }
    faults.extend(report.errors().map(|e| e.message.clone()));
    let info = inspect(&compiled.cubin).unwrap();
    let Some(entry) = info.kernel(kernel.source.kernel) else {
        return vec![format!("the image has no kernel {}", kernel.source.kernel)];
    };
    if !info.is_for(kernel.source.sm.parse().unwrap()) || info.kernels.len() != 1 {
        faults.push(format!("the image is for another part or holds more kernels: {info:?}"));
    }
    if entry.stack_bytes > 0 {
        faults.push(format!("a stack frame of {} bytes", entry.stack_bytes));
    }
    let budget = kernel.program.resources.registers;
    if entry.registers > budget {
        faults.push(format!("{} registers, and the program allows {budget}", entry.registers));
    }
    let target = default_targets().into_iter().find(|t| t.sm == kernel.source.sm).unwrap();
    let launch = Budget {
        threads: u32::try_from(kernel.source.threads).unwrap(),
        dynamic_shared: kernel.source.shared_bytes,
    };
    match check_budget(entry, &target, launch) {
        Ok(occupancy) if occupancy.blocks() >= 1 => {}
        Ok(occupancy) => faults.push(format!("no block fits an SM: {occupancy:?}")),
        Err(list) => faults.extend(list.iter().map(ToString::to_string)),
    }
    match symbol_bytes(&compiled.cubin, kernel.source.hash_symbol) {
        Ok(hash) if hash == kernel.program.hash() => {}
        Ok(hash) => faults.push(format!("the image holds the hash {hash:02x?}")),
        Err(error) => faults.push(error.to_string()),
    }
    let start = Instant::now();
    let lint = check_ptx(&compiled.ptx, &expected(kernel));
    let lint_ms = start.elapsed().as_secs_f64() * 1e3;
    match lint {
        Ok(report) => {
            let (slots, barriers) = (kernel.program.resources.ring_slots, report.ring_barriers);
            if barriers != 2 * slots as usize || report.packet_loads < 4 || report.packet_stores < 4
            {
                faults.push(format!("a lint report that cannot be right: {report:?}"));
            }
        }
        Err(list) => faults.extend(list.iter().map(ToString::to_string)),
    }
    println!(
        "{}: {} registers, {} instructions, lint {lint_ms:.0} ms",
        kernel.golden, entry.registers, entry.instructions
    );
    faults
}

fn judge(kernels: &[Kernel]) {
    nvrtc();
    let faults: Vec<String> = pool().install(|| {
        let judge = |k: &Kernel| -> Vec<String> {
            faults(k).into_iter().map(|f| format!("{}: {f}", k.golden)).collect()
        };
        kernels.par_iter().flat_map_iter(judge).collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_golden_source_compiles_within_its_budget_without_spills() {
    judge(kernels());
}

#[test]
fn kernels_that_draw_compile_within_their_budget_without_spills() {
    judge(&drawn());
}

/// Images must not depend on anything but text and compiler, so a second compile gives the same.
#[test]
fn a_second_compile_gives_the_same_image() {
    for name in ["sm_90a/odd-bf16", "sm_80/default-bf16"] {
        let kernel = kernels().iter().find(|k| k.golden.contains(name)).unwrap();
        assert_eq!(&kernel.compile().unwrap(), kernel.compiled().unwrap(), "{name}");
    }
}
