//! Whether a compiled kernel fits a target, and how many of its blocks one SM can hold.
//!
//! Allocation rules: CUDA occupancy calculator for compute capability 8.0 and later. Registers are
//! given to warps in units of 256, warps to an SM's four partitions, shared memory in units of 128
//! bytes on top of what the system reserves per block.

use amk_schedule_ir::Target;

use super::elf::KernelInfo;

/// How a kernel is going to be launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Threads per block.
    pub threads: u32,
    /// Dynamic shared memory per block, bytes.
    pub dynamic_shared: u64,
}

/// Blocks of a kernel that one SM can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Occupancy {
    /// As far as registers go.
    pub by_registers: u32,
    /// As far as shared memory goes.
    pub by_shared: u32,
}

impl Occupancy {
    /// Blocks per SM.
    pub fn blocks(self) -> u32 {
        self.by_registers.min(self.by_shared)
    }
}

/// A limit of the target that the kernel exceeds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetFault {
    /// Threads per block.
    #[error("{kernel} needs {asked} threads per block, and {target} allows 1 to {limit}")]
    Threads {
        /// The kernel.
        kernel: String,
        /// The target.
        target: String,
        /// Threads asked for.
        asked: u32,
        /// The target's limit.
        limit: u32,
    },
    /// Registers of one thread.
    #[error("{kernel} uses {used} registers per thread, and {target} has {limit}")]
    RegistersPerThread {
        /// The kernel.
        kernel: String,
        /// The target.
        target: String,
        /// Registers per thread.
        used: u32,
        /// The target's limit.
        limit: u32,
    },
    /// Registers of one block: no block would ever be resident.
    #[error(
        "{kernel} needs {needed} registers for {threads} threads at {each} each, and an SM of {target} has {limit}: no block fits; use fewer threads or bound the registers"
    )]
    Registers {
        /// The kernel.
        kernel: String,
        /// The target.
        target: String,
        /// Registers of a block as the hardware allocates them.
        needed: u64,
        /// Threads per block.
        threads: u32,
        /// Registers per thread.
        each: u32,
        /// Registers of an SM.
        limit: u32,
    },
    /// Shared memory of one block.
    #[error(
        "{kernel} needs {needed} bytes of shared memory per block ({fixed} static and {dynamic} dynamic), and {target} allows {limit}; use fewer or smaller ring slots"
    )]
    Shared {
        /// The kernel.
        kernel: String,
        /// The target.
        target: String,
        /// Static plus dynamic bytes.
        needed: u64,
        /// Static bytes.
        fixed: u64,
        /// Dynamic bytes.
        dynamic: u64,
        /// The target's limit for one block.
        limit: u64,
    },
}

const WARP: u32 = 32;
const REGISTER_UNIT: u64 = 256;
const PARTITIONS: u64 = 4;
const SHARED_UNIT: u64 = 128;

/// Checks a kernel's compiled resources against a target and computes its occupancy, which is at
/// least one block per SM on success.
///
/// # Errors
/// Every limit that is exceeded, not only the first.
pub fn check_budget(
    kernel: &KernelInfo,
    target: &Target,
    budget: Budget,
) -> Result<Occupancy, Vec<BudgetFault>> {
    let mut faults = Vec::new();
    let name = || (kernel.name.clone(), target.name.clone());
    if budget.threads == 0 || budget.threads > target.threads_per_block {
        let (kernel, target_name) = name();
        faults.push(BudgetFault::Threads {
            kernel,
            target: target_name,
            asked: budget.threads,
            limit: target.threads_per_block,
        });
    }
    if kernel.registers > target.registers_per_thread {
        let (kernel_name, target_name) = name();
        faults.push(BudgetFault::RegistersPerThread {
            kernel: kernel_name,
            target: target_name,
            used: kernel.registers,
            limit: target.registers_per_thread,
        });
    }
    let warps = u64::from(budget.threads.div_ceil(WARP)).next_multiple_of(PARTITIONS);
    let per_warp = (u64::from(kernel.registers) * u64::from(WARP)).next_multiple_of(REGISTER_UNIT);
    let registers = per_warp * warps;
    let by_registers = quotient(u64::from(target.registers_per_sm), registers);
    if by_registers == 0 {
        let (kernel_name, target_name) = name();
        faults.push(BudgetFault::Registers {
            kernel: kernel_name,
            target: target_name,
            needed: registers,
            threads: budget.threads,
            each: kernel.registers,
            limit: target.registers_per_sm,
        });
    }
    let shared = kernel.shared_bytes.saturating_add(budget.dynamic_shared);
    let allocated = shared
        .saturating_add(target.reserved_shared)
        .checked_next_multiple_of(SHARED_UNIT)
        .unwrap_or(u64::MAX);
    let by_shared = quotient(target.shared_per_sm, allocated);
    if shared > target.shared_per_block || by_shared == 0 {
        let (kernel_name, target_name) = name();
        faults.push(BudgetFault::Shared {
            kernel: kernel_name,
            target: target_name,
            needed: shared,
            fixed: kernel.shared_bytes,
            dynamic: budget.dynamic_shared,
            limit: target.shared_per_block,
        });
    }
    if faults.is_empty() { Ok(Occupancy { by_registers, by_shared }) } else { Err(faults) }
}

fn quotient(total: u64, each: u64) -> u32 {
    let blocks = total.checked_div(each).unwrap_or(u64::from(u32::MAX));
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::resolve;

    fn kernel(registers: u32, shared_bytes: u64) -> KernelInfo {
        KernelInfo {
            name: "megakernel".into(),
            registers,
            stack_bytes: 0,
            shared_bytes,
            constant_bytes: 0,
            code_bytes: 0,
            instructions: 0,
        }
    }

    fn check(
        part: &str,
        registers: u32,
        fixed: u64,
        threads: u32,
        dynamic_shared: u64,
    ) -> Result<Occupancy, Vec<BudgetFault>> {
        let target = resolve(part).unwrap().target;
        let budget = Budget { threads, dynamic_shared };
        check_budget(&kernel(registers, fixed), &target, budget)
    }

    #[test]
    fn a_thousand_threads_at_128_registers_are_refused_not_divided_by() {
        let faults = check("h200", 128, 0, 1024, 0).unwrap_err();
        assert!(matches!(
            faults[..],
            [BudgetFault::Registers { needed: 131_072, limit: 65_536, .. }]
        ));
    }

    #[test]
    fn the_block_limit_is_exact() {
        let most = 232_448;
        assert!(check("h200", 64, 0, 384, most).is_ok());
        assert!(check("h200", 64, 0, 384, most + 1).is_err());
        assert!(check("h200", 64, 16, 384, most - 16).is_ok());
        assert!(check("h200", 64, 17, 384, most - 16).is_err());
        // A layout for 227 KB on a part with 99 KB.
        let faults = check("rtx5090", 64, 0, 384, most).unwrap_err();
        assert!(matches!(faults[..], [BudgetFault::Shared { limit: 101_376, .. }]));
    }

    #[test]
    fn occupancy_agrees_with_the_occupancy_calculator() {
        // 64 registers: 2048 per warp, 12 warps = 24576 of 65536: two blocks.
        assert_eq!(check("h200", 64, 0, 384, 0).unwrap().by_registers, 2);
        // 5 warps occupy the partitions of 8: 8 x 8192 = 65536.
        assert_eq!(check("h200", 255, 0, 160, 0).unwrap().by_registers, 1);
        assert_eq!(check("a100", 32, 0, 256, 48 * 1024).unwrap().by_shared, 3);
        assert_eq!(check("h200", 0, 0, 32, 0).unwrap().by_registers, u32::MAX);
    }

    #[test]
    fn every_fault_is_reported() {
        assert_eq!(check("h200", 256, 0, 2048, 1 << 20).unwrap_err().len(), 4);
        assert_eq!(check("h200", 10, u64::MAX, 0, u64::MAX).unwrap_err().len(), 2);
    }
}
