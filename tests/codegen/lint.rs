//! The lint over compiled PTX accepts the kernels of all kinds of programs, and the lint over templates
//! finds raw synchronisation where it must not be.

use amk::codegen::templates;
use amk::lint::{Expected, LintFault, LintReport, check_ptx, check_templates};
use amk::target::default_targets;
use amk::toolchain::{CompileRequest, SpillPolicy};
use rayon::prelude::*;

use crate::support::{Kernel, nvrtc, others, pool};

pub fn ptx(kernel: &Kernel, text: &str) -> String {
    let request = CompileRequest {
        source: text,
        name: &kernel.golden,
        arch: kernel.source.sm.parse().unwrap(),
        options: &[],
        spills: SpillPolicy::Report,
    };
    nvrtc().compile_to_ptx(&request).unwrap_or_else(|e| panic!("{}: {e}", kernel.golden))
}

pub fn expected(kernel: &Kernel) -> Expected {
    let targets = default_targets();
    let target = targets.iter().find(|t| t.sm == kernel.source.sm).unwrap();
    Expected::new(&kernel.program, target)
}

pub fn judge(kernel: &Kernel, text: &str) -> Result<LintReport, Vec<LintFault>> {
    check_ptx(&ptx(kernel, text), &expected(kernel))
}

#[test]
fn every_kind_of_program_passes() {
    let others = others();
    let all: Vec<_> =
        pool().install(|| others.par_iter().map(|k| (k, judge(k, &k.source.text))).collect());
    for (kernel, result) in all {
        let report = result.unwrap_or_else(|faults| panic!("{}: {faults:#?}", kernel.golden));
        let packets = kernel.golden != "counters";
        assert_eq!(report.packet_loads > 0, packets, "{}: {report:?}", kernel.golden);
        assert_eq!(report.packet_stores > 0, packets, "{}: {report:?}", kernel.golden);
    }
}

#[test]
fn templates_keep_raw_synchronisation_in_its_folders() {
    let faults = check_templates(templates().iter().copied());
    let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
    assert!(faults.is_empty(), "{}", lines.join("\n"));
    // Every file of the folder is among them.
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("templates");
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "j2") {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
                assert!(templates().iter().any(|(n, _)| *n == name), "{name} is in no list");
            }
        }
    }
}

#[test]
fn raw_synchronisation_elsewhere_is_found() {
    let ops = "ops/made_up.cu.j2";
    for (text, word) in [
        (
            "x;\nasm volatile(\"ld.acquire.gpu.global.u32 %0, [%1];\" : \"=r\"(v) : \"l\"(p));",
            "assembly",
        ),
        ("asm(\"mov.u32 %0, 1;\" : \"=r\"(v));", "assembly"),
        ("__syncthreads();", "__syncthreads"),
        ("__threadfence();", "__threadfence"),
        ("atomicAdd(p, 1);", "atomicAdd"),
        ("while (*(volatile u32*)p) {}", "volatile"),
        ("x = __ldcg(p);", "__ldcg"),
        ("cuda::atomic_ref<u32> r(*p);", "cuda"),
    ] {
        let faults = check_templates([(ops, text)]);
        assert!(faults.iter().any(|f| f.what.contains(word)), "{text}: {faults:?}");
        assert!(check_templates([("sync/ptx.cu.j2", text)]).is_empty());
    }
    for raw in [
        "ld.relaxed.gpu.global.b64 %0, [%1];",
        "ld.global.u32 %0, [%1];",
        "st.shared.u32 [%0], 1;",
        "red.release.gpu.global.add.u32 [%0], 1;",
        "atom.global.add.u32 %0, [%1], 1;",
        "fence.acq_rel.gpu;",
        "membar.gl;",
        "bar.sync 0;",
        "barrier.cta.sync 0;",
        "{\\n.reg .b64 s;\\nmbarrier.arrive.shared.b64 s, [%0];\\n}",
        "cp.async.wait_all;",
        "mov.u32 %0, 1; @p cp.async.bulk.commit_group;",
    ] {
        let text = format!(
            "// asm volatile(\"bar.sync 0;\");\n\nasm volatile(\n    \"{raw}\"\n    ::\"l\"(p) : \"memory\");"
        );
        let faults = check_templates([("arch/cuda.cu.j2", text.as_str())]);
        assert_eq!(faults.len(), 1, "{raw}: {faults:?}");
        assert_eq!(faults[0].line, 3, "{raw}");
    }
    let fine =
        "asm volatile(\"prefetch.global.L1 [%0];\" ::\"l\"(p)); // ld.acquire\n u32 atomics_free;";
    assert!(
        check_templates([("arch/cuda.cu.j2", fine)]).iter().all(|f| f.what.contains("atomics"))
    );
}
