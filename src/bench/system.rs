//! What nvidia-smi says of the device while it is measured.

use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// One look at a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Look {
    pub name: String,
    pub driver: String,
    /// Clocks, MHz.
    pub sm_mhz: Option<f64>,
    pub memory_mhz: Option<f64>,
    /// Degrees Celsius.
    pub temperature: Option<f64>,
    /// Watts.
    pub power: Option<f64>,
}

const FIELDS: &str = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw";

/// Asks nvidia-smi about device `ordinal`; None where there is no such program or it fails.
pub fn look(ordinal: usize) -> Option<Look> {
    let output = Command::new("nvidia-smi")
        .args([
            &format!("--query-gpu={FIELDS}"),
            "--format=csv,noheader,nounits",
            &format!("--id={ordinal}"),
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    parse(&String::from_utf8_lossy(&output.stdout))
}

/// Reads a line of comma-separated values; numbers that are none, as in `[N/A]`, are left out.
pub fn parse(text: &str) -> Option<Look> {
    let fields: Vec<&str> = text.lines().next()?.split(',').map(str::trim).collect();
    let &[name, driver, sm, memory, temperature, power] = fields.as_slice() else { return None };
    Some(Look {
        name: name.to_owned(),
        driver: driver.to_owned(),
        sm_mhz: sm.parse().ok(),
        memory_mhz: memory.parse().ok(),
        temperature: temperature.parse().ok(),
        power: power.parse().ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_tool_is_read() {
        let look = parse("NVIDIA H200, 580.159.04, 1785, 3201, 41, 312.52\n").unwrap();
        assert_eq!(look.driver, "580.159.04");
        assert_eq!((look.sm_mhz, look.power), (Some(1785.0), Some(312.52)));
        let look = parse("NVIDIA H200, 580.1, [N/A], 3201, 41, [Not Supported]").unwrap();
        assert_eq!((look.sm_mhz, look.memory_mhz, look.power), (None, Some(3201.0), None));
        assert_eq!(parse("No devices were found"), None);
        assert_eq!(parse(""), None);
    }
}
