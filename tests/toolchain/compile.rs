//! Source to cubin and PTX.

use amk::target::DEFAULT_ARCHS;
use amk::toolchain::{
    CompileError, CompileRequest, FetchEvent, FetchOptions, FindOptions, Origin, Place, Severity,
    SpillPolicy, fetch, find_nvrtc,
};

use crate::support::{SMALL, SPILLING, arch, compile, nvrtc, request};

#[test]
fn every_default_architecture_compiles_to_a_cubin_and_ptx() {
    for arch in DEFAULT_ARCHS {
        let name = arch.to_string();
        let out = compile(SMALL, &name).unwrap();
        assert!(out.cubin.starts_with(b"\x7fELF"), "{name}");
        assert!(out.ptx.contains(&format!(".target {name}")), "{name}");
        assert!(!out.ptx.contains('\0') && !out.log.contains('\0'), "{name}");
        let report = out.report();
        assert_eq!(report.functions.len(), 2, "{name}: {}", out.log);
        assert_eq!(report.spill_bytes(), 0, "{name}");
    }
}

#[test]
fn two_compiles_and_concurrent_compiles_give_the_same_bytes() {
    let first = compile(SMALL, "sm_90a").unwrap();
    let others: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> =
            (0..4).map(|_| scope.spawn(|| compile(SMALL, "sm_90a").unwrap())).collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    });
    assert!(others.iter().all(|other| *other == first));
    // The source's name is for messages only.
    let renamed = CompileRequest { name: "/another/place/other.cu", ..request(SMALL, "sm_90a") };
    assert_eq!(nvrtc().compile(&renamed).unwrap(), first);
}

#[test]
fn ptx_alone_is_that_of_the_whole_compile() {
    for name in ["sm_80", "sm_90a", "sm_120"] {
        let whole = compile(SMALL, name).unwrap().ptx;
        assert_eq!(nvrtc().compile_to_ptx(&request(SMALL, name)).unwrap(), whole, "{name}");
    }
    let error = nvrtc().compile_to_ptx(&request("int f( {", "sm_80")).unwrap_err();
    assert!(matches!(error, CompileError::Refused { .. }), "{error}");
}

#[test]
fn an_error_names_the_source_line() {
    let source = "extern \"C\" __global__ void k(float* o) {\n  int unused;\n  o[0] = foo;\n}\n";
    let error = compile(source, "sm_80").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("test.cu") && text.contains("sm_80"), "{text}");
    assert!(text.contains("source line 3") && text.contains("\"foo\" is undefined"), "{text}");
    let CompileError::Refused { diagnostics, log, .. } = error else {
        panic!("{error:?}");
    };
    let found: Vec<_> = diagnostics.iter().map(|d| (d.severity, d.place.clone())).collect();
    assert!(found.contains(&(Severity::Error, Place::Source { line: 3 })), "{found:?}");
    assert!(found.contains(&(Severity::Warning, Place::Source { line: 2 })), "{found:?}");
    for d in &diagnostics {
        let line = log.lines().nth(d.log_line as usize - 1).unwrap();
        assert!(line.contains(&d.message), "{line}");
    }
}

#[test]
fn an_instruction_ptxas_does_not_know_names_the_ptx_line() {
    let source = "extern \"C\" __global__ void k() {\n  asm volatile(\"wibble.foo;\");\n}\n";
    let Err(CompileError::Refused { diagnostics, .. }) = compile(source, "sm_90a") else {
        panic!("an unknown instruction was accepted");
    };
    assert!(diagnostics.iter().any(|d| matches!(d.place, Place::Ptx { line } if line > 1)));
}

#[test]
fn wgmma_is_refused_without_the_letter() {
    let source =
        "extern \"C\" __global__ void k() { asm volatile(\"wgmma.fence.sync.aligned;\"); }";
    assert!(compile(source, "sm_90a").is_ok());
    assert!(matches!(compile(source, "sm_90"), Err(CompileError::Refused { .. })));
}

#[test]
fn static_shared_memory_over_the_limit_is_refused_with_both_numbers() {
    let source = "extern \"C\" __global__ void k(float* o) { __shared__ float a[65536]; \
        a[threadIdx.x] = o[0]; __syncthreads(); o[0] = a[3]; }";
    let error = compile(source, "sm_90a").unwrap_err();
    assert!(matches!(error, CompileError::Refused { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("0x40000 bytes") && text.contains(" max)"), "{text}");
}

#[test]
fn there_is_no_include_path() {
    let text = compile("#include <cuda_bf16.h>\n", "sm_90a").unwrap_err().to_string();
    assert!(text.contains("source line 1") && text.contains("cuda_bf16.h"), "{text}");
    for option in ["-I/usr/include", "-I", "--include-path=/x", "-lineinfo", "--generate-line-info"]
    {
        let options = [option.to_owned()];
        let with = CompileRequest { options: &options, ..request(SMALL, "sm_80") };
        let error = nvrtc().compile(&with).unwrap_err();
        assert!(matches!(error, CompileError::ForbiddenOption { .. }), "{option}: {error}");
    }
}

#[test]
fn spills_are_an_error_by_default_and_a_number_on_request() {
    let error = compile(SPILLING, "sm_90a").unwrap_err();
    let CompileError::Spills { function, stores, loads, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(function, "spill");
    assert!(*stores > 0 && *loads > 0);
    let lenient = CompileRequest { spills: SpillPolicy::Report, ..request(SPILLING, "sm_90a") };
    let out = nvrtc().compile(&lenient).unwrap();
    assert_eq!(out.report().spill_bytes(), stores + loads);
}

#[test]
fn an_ignored_setmaxnreg_is_an_error() {
    let source = "extern \"C\" __global__ void k(float* o) {\n\
        asm volatile(\"setmaxnreg.inc.sync.aligned.u32 240;\"); o[0] = 1; }\n";
    let error = compile(source, "sm_90a").unwrap_err();
    assert!(matches!(error, CompileError::SetmaxnregIgnored { .. }), "{error}");
    assert!(error.to_string().contains("C750"), "{error}");
    // With a known register count at entry the compiler honours it.
    let bounded = source.replace("void k(", "void __launch_bounds__(128, 1) k(");
    let out = compile(&bounded, "sm_90a");
    assert!(out.is_ok(), "{out:?}");
}

#[test]
fn an_architecture_the_compiler_does_not_know_is_named_with_those_it_knows() {
    for name in ["sm_30", "sm_990"] {
        let error = compile(SMALL, name).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, CompileError::UnsupportedArch { .. }), "{text}");
        assert!(text.contains(name) && text.contains("sm_90"), "{text}");
        assert!(text.contains("amk toolchain fetch"), "{text}");
    }
    // A letter that the number does not have.
    assert!(matches!(compile(SMALL, "sm_80a"), Err(CompileError::UnsupportedArch { .. })));
}

#[test]
fn a_nul_byte_is_refused_where_it_stands() {
    let error = compile("int\0 x;", "sm_80").unwrap_err();
    assert!(matches!(error, CompileError::NulByte { offset: 3, .. }), "{error}");
}

#[test]
fn an_unknown_option_is_reported_in_the_compilers_words() {
    let options = ["--wibble".to_owned()];
    let with = CompileRequest { options: &options, ..request(SMALL, "sm_80") };
    let text = nvrtc().compile(&with).unwrap_err().to_string();
    assert!(text.contains("--wibble"), "{text}");
}

#[test]
fn the_compiler_says_who_it_is() {
    let nvrtc = nvrtc();
    assert_eq!(nvrtc.release().split('.').count(), 3, "{}", nvrtc.release());
    assert!(nvrtc.identity().contains(nvrtc.release()) && nvrtc.identity().contains("CL-"));
    let (major, minor) = nvrtc.cuda_version();
    assert!(nvrtc.release().starts_with(&format!("{major}.{minor}.")));
    assert!(nvrtc.path().is_absolute(), "{}", nvrtc.path().display());
    assert!(nvrtc.supported().contains(&arch("sm_90a").number));
}

#[test]
fn a_named_library_or_folder_comes_first() {
    let file = nvrtc().path().to_owned();
    for path in [file.clone(), file.parent().unwrap().to_owned()] {
        let found = find_nvrtc(&FindOptions::from_env(Some(path))).unwrap();
        assert_eq!(found.nvrtc.origin(), Origin::Explicit);
        assert_eq!(found.nvrtc.release(), nvrtc().release());
    }
}

/// pip is played by a script that puts the machine's own NVRTC where the wheel would have it.
#[test]
fn fetch_installs_tries_and_then_names() {
    use std::os::unix::fs::PermissionsExt;
    let library = nvrtc().path().canonicalize().unwrap();
    let folder = library.parent().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let python = dir.path().join("python");
    let (major, _) = nvrtc().cuda_version();
    let script = format!(
        "#!/bin/sh\n\
         case \"$*\" in *install*) ;; *) echo fine; exit 0;; esac\n\
         while [ \"$1\" != --target ]; do shift; done\n\
         mkdir -p \"$2/nvidia/cu13/lib\"\n\
         ln -s {folder}/libnvrtc* \"$2/nvidia/cu13/lib/\"\n\
         ln -sf {library} \"$2/nvidia/cu13/lib/libnvrtc.so.{major}\"\n\
         echo Successfully installed $3\n",
        folder = folder.display(),
        library = library.display(),
    );
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let options = FetchOptions {
        version: nvrtc().release().to_owned(),
        cache: dir.path().join("cache"),
        python,
        force: false,
    };
    let mut seen = Vec::new();
    let mut note = |event: FetchEvent<'_>| match event {
        FetchEvent::Started { requirement, .. } => seen.push(requirement.to_owned()),
        FetchEvent::Line(line) => seen.push(line.to_owned()),
        FetchEvent::Checking => seen.push("checking".to_owned()),
        FetchEvent::Tick { .. } => {}
    };
    let first = fetch(&options, &mut note).unwrap();
    assert!(!first.already_there && first.library.is_file());
    assert_eq!(first.release, options.version);
    let again = fetch(&options, &mut note).unwrap();
    assert!(again.already_there && again.library == first.library);
    let forced = FetchOptions { force: true, ..options.clone() };
    assert!(!fetch(&forced, &mut note).unwrap().already_there);
    assert!(seen[0].starts_with("nvidia-cuda-nvrtc") && seen[0].ends_with(&options.version));
    assert!(seen[1].starts_with("Successfully installed nvidia-cuda-nvrtc"));
    assert_eq!(seen[2], "checking");
    let folders = std::fs::read_dir(options.cache.join("toolchain")).unwrap().count();
    assert_eq!(folders, 1, "nothing but the release is left");

    // The cache folder alone is enough to find it.
    let search = FindOptions { cache: Some(options.cache.clone()), ..FindOptions::default() };
    let found = find_nvrtc(&search).unwrap();
    assert_eq!(found.nvrtc.origin(), Origin::Fetched);

    let wrong =
        FetchOptions { version: "13.0.1".into(), cache: dir.path().join("other"), ..options };
    let error = fetch(&wrong, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("13.0.1") && error.contains(nvrtc().release()), "{error}");
}
