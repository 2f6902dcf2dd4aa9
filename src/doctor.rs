//! `amk doctor`: what of the environment works, as a list of checks with a fix for each that does
//! not. `driver` holds everything that touches the CUDA driver. Nothing here panics, whatever the
//! machine lacks; a GPU, a compiler and Python are each optional, and what is there must work.

pub mod driver;

use std::path::PathBuf;

use serde::Serialize;

use crate::image::inspect;
use crate::target::{Arch, DEFAULT_ARCHS, arch_for_capability, check_device, records};
use crate::toolchain::{
    CacheDirError, CompileRequest, FindOptions, NotFound, Nvrtc, SpillPolicy, cache_root,
    find_nvrtc, installed_versions, probe_python,
};
use driver::{DriverState, LaunchError, probe_driver, self_test};

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Works.
    Ok,
    /// Absent or limited; everything that does not need it works.
    Warn,
    /// Present and broken, or required and absent.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Short fixed name, such as `nvrtc` or `driver`.
    pub name: &'static str,
    /// How it came out.
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// What to do about it; none when all is well.
    pub fix: Option<String>,
}

/// All checks. `ok` is false when one of them failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoctorReport {
    /// No check failed.
    pub ok: bool,
    /// The checks, in the order they ran.
    pub checks: Vec<Check>,
}

/// What to check.
#[derive(Debug)]
pub struct DoctorOptions {
    /// Where to look for the compiler.
    pub find: FindOptions,
    /// The cache root.
    pub cache: Result<PathBuf, CacheDirError>,
    /// Treat a missing driver, device or compiler as a failure, not as a warning.
    pub require_gpu: bool,
}

impl DoctorOptions {
    /// The environment as the other commands see it. `nvrtc` is the value of `--nvrtc`.
    pub fn from_env(nvrtc: Option<PathBuf>) -> Self {
        Self { find: FindOptions::from_env(nvrtc), cache: cache_root(), require_gpu: false }
    }
}

/// A kernel whose answer is known: 64 words, each a function of its index.
const SELF_TEST: &str = "extern \"C\" __global__ void amk_doctor(unsigned* out) {
    out[threadIdx.x] = threadIdx.x * 2654435761u + 12345u;
}
";

fn ok(name: &'static str, detail: String) -> Check {
    Check { name, status: Status::Ok, detail, fix: None }
}

fn bad(name: &'static str, status: Status, detail: String, fix: &str) -> Check {
    Check { name, status, detail, fix: Some(fix.to_owned()) }
}

/// Runs every check. `progress` gets each as soon as it is known.
pub fn diagnose(options: &DoctorOptions, progress: &mut dyn FnMut(&Check)) -> DoctorReport {
    let mut checks: Vec<Check> = Vec::new();
    let mut add = |check: Check| {
        progress(&check);
        checks.push(check);
    };
    let absent = match options.require_gpu {
        true => Status::Fail,
        false => Status::Warn,
    };
    let nvrtc = nvrtc_checks(options, absent, &mut add);
    let state = probe_driver();
    add(driver_check(&state, absent));
    add(device_check(&state, absent));
    if let (DriverState::Ready { version, .. }, Some(nvrtc)) = (&state, &nvrtc) {
        add(version_check(*version, nvrtc));
    }
    add(launch_check(&state, nvrtc.as_ref(), absent));
    add(python_check(options));
    add(cache_check(options));
    add(environment_check(|name| {
        let value = std::env::var_os(name)?;
        Some(value.to_string_lossy().into_owned())
    }));
    DoctorReport { ok: checks.iter().all(|c| c.status != Status::Fail), checks }
}

/// `nvrtc`, `architectures` and `compile`.
fn nvrtc_checks(
    options: &DoctorOptions,
    absent: Status,
    add: &mut dyn FnMut(Check),
) -> Option<Nvrtc> {
    let found = match find_nvrtc(&options.find) {
        Ok(found) => found,
        Err(error) => {
            let (status, fix) = match &error {
                NotFound::Nowhere { .. } => (absent, "amk toolchain fetch"),
                _ => (Status::Fail, "correct --nvrtc or AMK_NVRTC, or leave it out"),
            };
            add(bad("nvrtc", status, error.to_string(), fix));
            return None;
        }
    };
    let nvrtc = found.nvrtc;
    let mut detail =
        format!("{} at {} ({})", nvrtc.identity(), nvrtc.path().display(), nvrtc.origin());
    for skipped in &found.skipped {
        detail += &format!("; passed over {}: {}", skipped.path.display(), skipped.reason);
    }
    add(ok("nvrtc", detail));

    let (known, unknown): (Vec<Arch>, Vec<Arch>) =
        DEFAULT_ARCHS.iter().partition(|a| nvrtc.supported().contains(&a.number));
    let names = |list: &[Arch]| {
        let names: Vec<String> = list.iter().map(ToString::to_string).collect();
        names.join(", ")
    };
    add(match unknown.is_empty() {
        true => ok("architectures", format!("compiles for {}", names(&known))),
        false => bad(
            "architectures",
            Status::Warn,
            format!("this compiler does not know {}", names(&unknown)),
            "amk toolchain fetch gets a compiler that does; or pass --nvrtc PATH",
        ),
    });
    let Some(arch) = known.iter().max().copied() else {
        return Some(nvrtc);
    };
    add(match compile_self_test(&nvrtc, arch) {
        Ok((_, detail)) => ok("compile", detail),
        Err(reason) => bad(
            "compile",
            Status::Fail,
            reason,
            "reinstall the compiler, or use another one: amk toolchain fetch, --nvrtc PATH",
        ),
    });
    Some(nvrtc)
}

/// The self-test kernel as a cubin, and a sentence about it.
fn compile_self_test(nvrtc: &Nvrtc, arch: Arch) -> Result<(Vec<u8>, String), String> {
    let compiled = nvrtc
        .compile(&CompileRequest {
            source: SELF_TEST,
            name: "doctor.cu",
            arch,
            options: &[],
            spills: SpillPolicy::Refuse,
        })
        .map_err(|e| e.to_string())?;
    let info = inspect(&compiled.cubin).map_err(|e| e.to_string())?;
    let kernel = info
        .kernel("amk_doctor")
        .filter(|_| info.is_for(arch))
        .ok_or_else(|| format!("the image for {arch} does not hold the kernel it was made of"))?;
    let detail = format!(
        "a test kernel for {arch}: {} bytes, {} registers, {} instructions",
        compiled.cubin.len(),
        kernel.registers,
        kernel.instructions
    );
    Ok((compiled.cubin, detail))
}

fn driver_check(state: &DriverState, absent: Status) -> Check {
    match state {
        DriverState::Absent => bad(
            "driver",
            absent,
            "no CUDA driver (libcuda.so.1) on this machine; compiling, validating and the CPU reference work without it".into(),
            "to run on a GPU, install the NVIDIA driver (R580 or newer for CUDA 13)",
        ),
        DriverState::MissingSymbols { library, missing } => bad(
            "driver",
            Status::Fail,
            format!("{library} lacks {}: the driver is too old, or no full driver", missing.join(", ")),
            "install a newer NVIDIA driver (R580 or newer for CUDA 13)",
        ),
        DriverState::Failed { call, error } => bad(
            "driver",
            Status::Fail,
            format!("the driver is installed, and {call} failed: {error}"),
            "check nvidia-smi; after a driver update reboot or reload the kernel module; remove stub libraries from LD_LIBRARY_PATH",
        ),
        DriverState::NoDevice { version } | DriverState::Ready { version, .. } => ok(
            "driver",
            format!("supports CUDA {}.{}", version / 1000, version % 1000 / 10),
        ),
    }
}

fn device_check(state: &DriverState, absent: Status) -> Check {
    let devices = match state {
        DriverState::Ready { devices, .. } => devices,
        DriverState::NoDevice { .. } => {
            return bad(
                "device",
                absent,
                "the driver works and sees no device".into(),
                "check CUDA_VISIBLE_DEVICES and, in a container, that the GPU is passed in",
            );
        }
        _ => {
            return bad(
                "device",
                absent,
                "not looked for: no working driver".into(),
                "see the driver check",
            );
        }
    };
    let mut details = Vec::new();
    let mut worst = Status::Ok;
    for (ordinal, device) in devices.iter().enumerate() {
        let (major, minor) = device.capability;
        let mut detail = format!(
            "{ordinal}: {}, compute capability {major}.{minor}, {} SMs, {} bytes of shared memory per block, {:.1} GB",
            device.name,
            device.sm_count,
            device.shared_per_block,
            device.memory_bytes as f64 / 1e9
        );
        let record = records().iter().find(|r| check_device(&r.target, device).is_ok());
        match (record, arch_for_capability(major, minor, None)) {
            (_, Err(error)) => {
                worst = worst.max(Status::Warn);
                detail += &format!(" ({error})");
            }
            (Some(record), _) => detail += &format!(", fits target {}", record.target.name),
            (None, Ok(choice)) => {
                detail += &format!(
                    ", no shipped target fits; compiled as {} from the driver's numbers",
                    choice.arch
                );
            }
        }
        if !device.cooperative {
            worst = Status::Fail;
            detail += ", no cooperative launch";
        }
        details.push(detail);
    }
    let detail = details.join("; ");
    match worst {
        Status::Ok => ok("device", detail),
        worst => bad(
            "device",
            worst,
            detail,
            "use a device of compute capability 8.0 or newer that is not shared through MPS or vGPU without cooperative launch",
        ),
    }
}

fn version_check(driver: i32, nvrtc: &Nvrtc) -> Check {
    let driver = (driver / 1000, driver % 1000 / 10);
    let (major, minor) = nvrtc.cuda_version();
    let both =
        format!("driver for CUDA {}.{}, compiler of CUDA {major}.{minor}", driver.0, driver.1);
    let driver_major = u32::try_from(driver.0).unwrap_or(0);
    if major > driver_major {
        // Images of a newer major need not load; those of a newer minor do (CUDA compatibility).
        return bad(
            "versions",
            Status::Warn,
            format!("{both}: the driver may refuse its images"),
            "update the driver, or use an NVRTC of the driver's CUDA release (--nvrtc PATH)",
        );
    }
    ok("versions", both)
}

fn launch_check(state: &DriverState, nvrtc: Option<&Nvrtc>, absent: Status) -> Check {
    let (devices, nvrtc) = match (state, nvrtc) {
        (DriverState::Ready { devices, .. }, Some(nvrtc)) => (devices, nvrtc),
        (DriverState::Ready { .. }, None) => {
            return bad(
                "launch",
                absent,
                "not tried: no compiler for the test kernel".into(),
                "amk toolchain fetch",
            );
        }
        _ => {
            return bad(
                "launch",
                absent,
                "not tried: no device".into(),
                "see the driver and device checks",
            );
        }
    };
    let Some(device) = devices.first() else {
        return bad("launch", absent, "not tried: no device".into(), "see the device check");
    };
    let fail = |detail: String, fix: &str| bad("launch", Status::Fail, detail, fix);
    let (major, minor) = device.capability;
    let choice = match arch_for_capability(major, minor, Some(nvrtc.supported())) {
        Ok(choice) => choice,
        Err(error) => {
            return bad(
                "launch",
                absent,
                format!("not tried: {error}"),
                "amk toolchain fetch, or another device",
            );
        }
    };
    let cubin = match compile_self_test(nvrtc, choice.arch) {
        Ok((cubin, _)) => cubin,
        Err(reason) => return fail(reason, "see the compile check"),
    };
    let expected: Vec<u32> =
        (0..64u32).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(12_345)).collect();
    match self_test(0, cubin, c"amk_doctor", &expected) {
        Ok(()) => {
            let mut detail = format!(
                "a test kernel for {} ran on {} and gave the right words",
                choice.arch, device.name
            );
            if let Some(notice) = choice.notice {
                detail += &format!(" ({notice})");
            }
            ok("launch", detail)
        }
        Err(error @ LaunchError::Wrong { .. }) => fail(
            error.to_string(),
            "do not trust this device: check nvidia-smi -q for ECC errors, reset or replace it",
        ),
        Err(error) => fail(
            error.to_string(),
            "check nvidia-smi for other processes and error states, and that driver and compiler fit",
        ),
    }
}

fn python_check(options: &DoctorOptions) -> Check {
    let Some(python) = &options.find.python else {
        return ok("python", "not looked for".into());
    };
    match probe_python(python) {
        Ok((version, pip)) => {
            let pip: Vec<&str> = pip.split_whitespace().take(2).collect();
            ok(
                "python",
                format!("{version} with {} (used by amk toolchain fetch alone)", pip.join(" ")),
            )
        }
        Err(error) => bad(
            "python",
            Status::Warn,
            error.to_string(),
            "needed for `amk toolchain fetch` alone; a CUDA toolkit or --nvrtc PATH does as well",
        ),
    }
}

fn cache_check(options: &DoctorOptions) -> Check {
    let fix = "set AMK_CACHE to a writable folder";
    let root = match &options.cache {
        Ok(root) => root,
        Err(error) => return bad("cache", Status::Fail, error.to_string(), fix),
    };
    let written = std::fs::create_dir_all(root).and_then(|()| {
        let mut file = tempfile::tempfile_in(root)?;
        std::io::Write::write_all(&mut file, b"amk")
    });
    if let Err(error) = written {
        let detail = format!("{} cannot be written: {error}", root.display());
        return bad("cache", Status::Fail, detail, fix);
    }
    let images: Vec<u64> = std::fs::read_dir(root.join("images"))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()))
        .collect();
    let fetched = installed_versions(root);
    let fetched = match fetched.first() {
        Some((version, _)) => format!("fetched NVRTC {version}"),
        None => "no fetched NVRTC".into(),
    };
    ok(
        "cache",
        format!(
            "{} is writable: {} images of {:.1} MB, {fetched}",
            root.display(),
            images.len(),
            images.iter().sum::<u64>() as f64 / 1e6
        ),
    )
}

/// Variables that change what amk does; the values of the second kind are secret.
const SHOWN: [&str; 12] = [
    "AMK_CACHE",
    "AMK_NVRTC",
    "AMK_PYTHON",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "HF_HOME",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "XDG_CACHE_HOME",
    "NO_COLOR",
];
const SECRET: [&str; 2] = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];

fn environment_check(var: impl Fn(&str) -> Option<String>) -> Check {
    let mut set: Vec<String> =
        SHOWN.iter().filter_map(|name| Some(format!("{name}={}", var(name)?))).collect();
    let secret = SECRET.iter().filter(|name| var(name).is_some());
    set.extend(secret.map(|name| format!("{name} is set (not shown)")));
    let detail = match set.is_empty() {
        true => "no variable that concerns amk is set".into(),
        false => set.join(", "),
    };
    let paths = var("LD_LIBRARY_PATH").unwrap_or_default();
    if paths.split(':').any(|p| p.trim_end_matches('/').ends_with("/stubs")) {
        return bad(
            "environment",
            Status::Warn,
            detail,
            "take the toolkit's stubs folder out of LD_LIBRARY_PATH: its libcuda is only for linking",
        );
    }
    if let Some(name) = SECRET.iter().find(|name| {
        var(name).is_some_and(|v| v.trim().is_empty() || v.contains(char::is_whitespace))
    }) {
        let fix =
            format!("{name} is empty or holds white space: set it to the bare token, or unset it");
        return bad("environment", Status::Warn, detail, &fix);
    }
    ok("environment", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(vars: &[(&str, &str)]) -> Check {
        environment_check(|name| {
            let hit = vars.iter().find(|(k, _)| *k == name);
            hit.map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn tokens_are_never_shown() {
        let check = environment(&[("HF_TOKEN", "hf_secret"), ("CUDA_HOME", "/opt/cuda")]);
        assert_eq!(check.status, Status::Ok);
        assert!(check.detail.contains("CUDA_HOME=/opt/cuda"), "{}", check.detail);
        assert!(check.detail.contains("HF_TOKEN is set"), "{}", check.detail);
        assert!(!check.detail.contains("hf_secret"));
        let check = environment(&[("HF_TOKEN", "hf_secret\n")]);
        assert_eq!(check.status, Status::Warn);
        assert!(!format!("{check:?}").contains("hf_secret"));
    }

    #[test]
    fn a_stubs_folder_on_the_library_path_is_called_out() {
        let check = environment(&[("LD_LIBRARY_PATH", "/lib:/usr/local/cuda/lib64/stubs/")]);
        assert_eq!(check.status, Status::Warn);
        assert!(check.fix.unwrap().contains("stubs"));
    }

    #[test]
    fn a_cache_that_cannot_be_written_fails_with_a_fix() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        let options = DoctorOptions {
            find: FindOptions::default(),
            cache: Ok(file.join("cache")),
            require_gpu: false,
        };
        let check = cache_check(&options);
        assert_eq!(check.status, Status::Fail);
        assert!(check.fix.unwrap().contains("AMK_CACHE"));
    }

    #[test]
    fn nothing_found_is_a_warning_and_a_failure_only_when_a_gpu_is_required() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = DoctorOptions {
            find: FindOptions::default(),
            cache: Ok(dir.path().join("cache")),
            require_gpu: false,
        };
        let status = |options: &DoctorOptions| {
            let report = diagnose(options, &mut |_| {});
            let nvrtc = report.checks.iter().find(|c| c.name == "nvrtc").unwrap();
            assert_eq!(nvrtc.fix.as_deref(), Some("amk toolchain fetch"));
            nvrtc.status
        };
        assert_eq!(status(&options), Status::Warn);
        options.require_gpu = true;
        assert_eq!(status(&options), Status::Fail);
    }
}
