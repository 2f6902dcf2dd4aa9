//! The accepted schedules of the tree: a safe program is rendered or refused by name, never a panic.

use std::path::Path;

use amk::codegen::{CodegenError, RenderOptions, render, tables};
use amk::target::resolve;
use amk_schedule_ir::Op;
use amk_validator::validate;

#[test]
fn accepted_schedules_are_rendered_or_refused_by_name() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schedules/accept");
    let mut judged = 0;
    for path in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
        if path.extension().is_none_or(|e| e != "sched") {
            continue;
        }
        let program =
            amk_schedule_ir::text::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let target = resolve(&program.sm_arch).unwrap().target;
        // Some fixtures are for a part of their own.
        let Ok(program) = validate(program, &target) else { continue };
        let opaque = program.instructions.iter().any(|i| matches!(i.op, Op::Opaque(_)));
        judged += 1;
        match render(&program, &target, RenderOptions::default()) {
            Ok(source) => {
                assert!(!opaque, "{}", path.display());
                assert_eq!(source.blocks, program.sms.len() as u64);
                assert!(source.text.contains("amk_megakernel"));
                tables(&program).unwrap();
            }
            Err(CodegenError::EpochWrap { .. } | CodegenError::ControlArea { .. }) => {}
            Err(error @ (CodegenError::Unsupported { .. } | CodegenError::Program(_))) => {
                let reason = ["opaque", "stream", "decodes nothing"];
                let named = reason.iter().any(|r| error.to_string().contains(r));
                assert!(named, "{}: {error}", path.display());
            }
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
    assert!(judged >= 40, "{judged}");
}
