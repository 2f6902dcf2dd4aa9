//! `doctor` in every state of the driver. The driver is played by a small libcuda made by gcc; each
//! case runs this test binary again as a child, because a process opens libcuda once.

use std::path::Path;
use std::process::Command;

use amk::doctor::driver::REQUIRED_SYMBOLS;
use amk::doctor::{DoctorOptions, diagnose};
use serde_json::Value;

use crate::support::nvrtc;

const MARK: &str = "doctor-report:";

/// The child of the other tests, and a test of its own: the report is complete on any machine.
#[test]
fn the_report_is_complete() {
    nvrtc();
    let mut streamed = 0;
    let report = diagnose(&DoctorOptions::from_env(None), &mut |_| streamed += 1);
    println!("{MARK}{}", serde_json::to_string(&report).unwrap());
    assert_eq!(streamed, report.checks.len());
    let names: Vec<_> = report.checks.iter().map(|c| c.name).collect();
    for name in [
        "nvrtc",
        "architectures",
        "compile",
        "driver",
        "device",
        "launch",
        "python",
        "cache",
        "environment",
    ] {
        assert_eq!(names.iter().filter(|n| **n == name).count(), 1, "{name} in {names:?}");
    }
    for check in &report.checks {
        assert!(!check.detail.is_empty());
        let is_ok = serde_json::to_value(check.status).unwrap() == "ok";
        assert_eq!(check.fix.is_none(), is_ok, "{check:?}");
    }
}

/// How the stand-in driver behaves.
struct Driver {
    symbols: Vec<&'static str>,
    init: i32,
    devices: i32,
    version: i32,
    launch: &'static str,
    cooperative: i32,
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            symbols: REQUIRED_SYMBOLS.to_vec(),
            init: 0,
            devices: 1,
            version: 13_000,
            // The grid is one block of 64 threads with one pointer argument.
            launch: "unsigned *out = *(unsigned **)params[0];\
                     for (unsigned i = 0; i < bx; i++) out[i] = i * 2654435761u + 12345u; return 0;",
            cooperative: 1,
        }
    }
}

impl Driver {
    /// C text with the listed functions; those without a body of their own return success.
    fn source(&self) -> String {
        let mut c = String::from("#include <stdlib.h>\n#include <string.h>\n");
        for symbol in &self.symbols {
            c += &match *symbol {
                "cuInit" => format!("int cuInit(unsigned f) {{ return {}; }}", self.init),
                "cuDriverGetVersion" => {
                    format!("int cuDriverGetVersion(int *v) {{ *v = {}; return 0; }}", self.version)
                }
                "cuGetErrorName" => "int cuGetErrorName(int e, const char **s) { *s = \"CUDA_ERROR_OF_THE_STUB\"; return 0; }".into(),
                "cuGetErrorString" => "int cuGetErrorString(int e, const char **s) { *s = \"stub\"; return 0; }".into(),
                "cuDeviceGetCount" => {
                    format!("int cuDeviceGetCount(int *n) {{ *n = {}; return 0; }}", self.devices)
                }
                "cuDeviceGet" => "int cuDeviceGet(int *d, int i) { *d = i; return 0; }".into(),
                "cuDeviceGetName" => "int cuDeviceGetName(char *s, int n, int d) { strncpy(s, \"Stub H200\", n); return 0; }".into(),
                "cuDeviceTotalMem_v2" => "int cuDeviceTotalMem_v2(size_t *n, int d) { *n = 150000000000; return 0; }".into(),
                // Numbers of CUdevice_attribute.
                "cuDeviceGetAttribute" => format!(
                    "int cuDeviceGetAttribute(int *v, int a, int d) {{ switch (a) {{ \
                     case 75: *v = 9; break; case 76: *v = 0; break; case 16: *v = 132; break; \
                     case 97: *v = 232448; break; case 81: *v = 233472; break; case 111: *v = 1024; break; \
                     case 82: *v = 65536; break; case 1: *v = 1024; break; case 38: *v = 52428800; break; \
                     case 36: *v = 3201000; break; case 37: *v = 6144; break; case 95: *v = {}; break; \
                     default: *v = 0; }} return 0; }}",
                    self.cooperative
                ),
                "cuModuleLoadData" => "int cuModuleLoadData(void **m, const void *p) { *m = (void *)p; return memcmp(p, \"\\177ELF\", 4) ? 200 : 0; }".into(),
                "cuModuleGetFunction" => "int cuModuleGetFunction(void **f, void *m, const char *s) { *f = m; return strcmp(s, \"amk_doctor\") ? 500 : 0; }".into(),
                "cuDevicePrimaryCtxRetain" => "int cuDevicePrimaryCtxRetain(void **c, int d) { *c = &cuDevicePrimaryCtxRetain; return 0; }".into(),
                "cuMemAlloc_v2" => "int cuMemAlloc_v2(void **p, size_t n) { *p = malloc(n); return 0; }".into(),
                "cuMemFree_v2" => "int cuMemFree_v2(void *p) { free(p); return 0; }".into(),
                "cuMemsetD8_v2" => "int cuMemsetD8_v2(void *p, unsigned char c, size_t n) { memset(p, c, n); return 0; }".into(),
                "cuMemcpyDtoH_v2" => "int cuMemcpyDtoH_v2(void *d, void *s, size_t n) { memcpy(d, s, n); return 0; }".into(),
                "cuLaunchKernel" => format!(
                    "int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, \
                     unsigned bz, unsigned sh, void *st, void **params, void **extra) {{ {} }}",
                    self.launch
                ),
                other => format!("int {other}(void) {{ return 0; }}"),
            };
            c.push('\n');
        }
        c
    }

    fn build(&self, folder: &Path) {
        let source = folder.join("cuda.c");
        std::fs::write(&source, self.source()).unwrap();
        let library = folder.join("libcuda.so.1");
        let gcc = Command::new("gcc")
            .args(["-shared", "-fPIC", "-O1", "-w", "-o"])
            .args([&library, &source])
            .output()
            .expect("these tests need gcc");
        assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
        // The loader is asked for the bare name first.
        std::fs::copy(&library, folder.join("libcuda.so")).unwrap();
    }
}

/// Runs the child with `folder` first on the library path and gives its report.
fn report_with(folder: &Path) -> Value {
    let inherited = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "doctor::the_report_is_complete", "--nocapture"])
        .env("LD_LIBRARY_PATH", format!("{}:{inherited}", folder.display()))
        .env("AMK_NVRTC", nvrtc().path())
        // Python is not what these cases are about, and it starts slowly.
        .env("AMK_PYTHON", folder.join("no-python"))
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{}: {out}\n{err}", output.status);
    assert!(!err.contains("panicked"), "{err}");
    let (_, json) = out.split_once(MARK).expect("the child prints a report");
    serde_json::from_str(json.lines().next().unwrap()).unwrap()
}

fn report_of(driver: &Driver) -> Value {
    let dir = tempfile::tempdir().unwrap();
    driver.build(dir.path());
    report_with(dir.path())
}

/// Status and text of one check.
fn check<'a>(report: &'a Value, name: &str) -> (&'a str, String) {
    let checks = report["checks"].as_array().unwrap();
    let check =
        checks.iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"));
    let text = format!("{} {}", check["detail"], check["fix"]);
    (check["status"].as_str().unwrap(), text)
}

#[test]
fn no_driver() {
    let dir = tempfile::tempdir().unwrap();
    // Hides a driver this machine may have: what is found here is no library.
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    let report = report_with(dir.path());
    let (status, text) = check(&report, "driver");
    assert_eq!(status, "warn", "{text}");
    assert!(text.contains("no CUDA driver"), "{text}");
    assert_eq!(check(&report, "launch").0, "warn");
    assert_eq!(check(&report, "compile").0, "ok");
    assert_eq!(report["ok"], true);
}

#[test]
fn no_device() {
    for driver in
        [Driver { init: 100, ..Driver::default() }, Driver { devices: 0, ..Driver::default() }]
    {
        let report = report_of(&driver);
        assert_eq!(check(&report, "driver").0, "ok");
        let (status, text) = check(&report, "device");
        assert_eq!(status, "warn", "{text}");
        assert!(text.contains("no device") && text.contains("CUDA_VISIBLE_DEVICES"), "{text}");
        assert_eq!(report["ok"], true);
    }
}

#[test]
fn a_missing_symbol() {
    let all_but = |absent: &[&str]| {
        let mut symbols = REQUIRED_SYMBOLS.to_vec();
        symbols.retain(|s| !absent.contains(s));
        Driver { symbols, ..Driver::default() }
    };
    let three = Driver {
        symbols: vec!["cuInit", "cuGetErrorName", "cuDeviceGetCount"],
        ..Driver::default()
    };
    for (driver, name) in [
        (all_but(&["cuLaunchCooperativeKernel"]), "cuLaunchCooperativeKernel"),
        (all_but(&["cuGetErrorString"]), "cuGetErrorString"),
        (all_but(&["cuInit"]), "cuInit"),
        (three, "cuMemAlloc_v2"),
    ] {
        let report = report_of(&driver);
        let (status, text) = check(&report, "driver");
        assert_eq!(status, "fail", "{text}");
        assert!(text.contains(name) && text.contains("newer NVIDIA driver"), "{text}");
        assert_eq!(report["ok"], false);
    }
}

#[test]
fn a_driver_that_fails_to_start_is_quoted() {
    let report = report_of(&Driver { init: 803, ..Driver::default() });
    let (status, text) = check(&report, "driver");
    assert_eq!(status, "fail");
    assert!(text.contains("cuInit") && text.contains("CUDA_ERROR_OF_THE_STUB (803)"), "{text}");
}

#[test]
fn a_working_device_passes_every_check() {
    let report = report_of(&Driver::default());
    for name in ["driver", "device", "versions", "launch"] {
        let (status, text) = check(&report, name);
        // An NVRTC of a newer major than the stand-in's 13.0 would rightly be warned about.
        let newer = name == "versions" && nvrtc().cuda_version().0 > 13;
        assert_eq!(status, if newer { "warn" } else { "ok" }, "{name}: {text}");
    }
    let (_, device) = check(&report, "device");
    assert!(device.contains("Stub H200") && device.contains("132 SMs"), "{device}");
    assert!(device.contains("fits target h200"), "{device}");
    assert!(check(&report, "driver").1.contains("13.0"));
    assert_eq!(report["ok"], true);
}

#[test]
fn wrong_words_and_refused_launches_fail() {
    let silent = Driver { launch: "return 0;", ..Driver::default() };
    let report = report_of(&silent);
    let (status, text) = check(&report, "launch");
    assert_eq!(status, "fail");
    assert!(text.contains("word 0 is 0xa5a5a5a5 where 0x00003039 is right"), "{text}");
    assert_eq!(report["ok"], false);

    let refused = Driver { launch: "return 719;", ..Driver::default() };
    let report = report_of(&refused);
    let (status, text) = check(&report, "launch");
    assert_eq!(status, "fail");
    assert!(text.contains("cuLaunchKernel") && text.contains("(719)"), "{text}");
}

#[test]
fn a_device_without_cooperative_launch_fails() {
    let report = report_of(&Driver { cooperative: 0, ..Driver::default() });
    let (status, text) = check(&report, "device");
    assert_eq!(status, "fail");
    assert!(text.contains("cooperative"), "{text}");
}

#[test]
fn a_driver_older_than_the_compiler_is_warned_about() {
    let report = report_of(&Driver { version: 11_080, ..Driver::default() });
    let (status, text) = check(&report, "versions");
    assert_eq!(status, "warn");
    assert!(text.contains("CUDA 11.8"), "{text}");
}
