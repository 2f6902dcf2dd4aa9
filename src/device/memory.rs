//! Device memory blocks and host words the device writes.

use std::sync::Arc;

use cudarc::driver::result::DriverError;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, HostSlice, PinnedHostSlice,
    SyncOnDrop, sys,
};

use super::{Device, DeviceError};

/// A block of device memory, bytes.
pub struct Block {
    slice: CudaSlice<u8>,
    device: Device,
}

impl Block {
    /// Allocates `bytes` of zeros.
    ///
    /// # Errors
    /// Not enough memory, said with numbers before the driver is asked.
    pub fn zeros(device: &Device, bytes: u64) -> Result<Block, DeviceError> {
        let free = device.free_memory()?;
        if bytes > free {
            return Err(DeviceError::Memory {
                what: "an allocation".to_owned(),
                needed: bytes,
                free,
            });
        }
        let slice = device
            .stream
            .alloc_zeros(bytes.max(16) as usize)
            .map_err(|e| DeviceError::call("allocating device memory", e))?;
        Ok(Block { slice, device: device.clone() })
    }

    /// Device address.
    pub fn address(&self) -> u64 {
        self.slice.device_ptr(&self.device.stream).0
    }

    /// Copies `bytes` to `offset`.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let at = offset as usize;
        let mut view = self
            .slice
            .try_slice_mut(at..at + bytes.len())
            .ok_or_else(|| out_of_block("writing", offset, bytes.len()))?;
        self.device
            .stream
            .memcpy_htod(bytes, &mut view)
            .map_err(|e| DeviceError::call("copying to the device", e))
    }

    /// Copies `bytes` to `offset` beside the main stream, while a kernel may be running, and waits for the copy.
    pub fn write_beside(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let at = offset as usize;
        let mut view = self
            .slice
            .try_slice_mut(at..at + bytes.len())
            .ok_or_else(|| out_of_block("writing", offset, bytes.len()))?;
        let side = self.device.side.clone();
        side.memcpy_htod(bytes, &mut view)
            .and_then(|()| side.synchronize())
            .map_err(|e| DeviceError::call("copying to the device", e))
    }

    /// Copies from `offset` beside the main stream, while a kernel may be running, and waits for the copy.
    pub fn read_beside(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let at = offset as usize;
        let view = self
            .slice
            .try_slice(at..at + bytes.len())
            .ok_or_else(|| out_of_block("reading", offset, bytes.len()))?;
        let side = self.device.side.clone();
        side.memcpy_dtoh(&view, bytes)
            .and_then(|()| side.synchronize())
            .map_err(|e| DeviceError::call("copying from the device", e))
    }

    /// Copies from `offset` and waits for it.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let at = offset as usize;
        let view = self
            .slice
            .try_slice(at..at + bytes.len())
            .ok_or_else(|| out_of_block("reading", offset, bytes.len()))?;
        self.device
            .stream
            .memcpy_dtoh(&view, bytes)
            .map_err(|e| DeviceError::call("copying from the device", e))?;
        self.device.synchronize()
    }

    /// Fills `[offset, offset + bytes)` with zeros.
    pub fn clear(&mut self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        let (at, end) = (offset as usize, (offset + bytes) as usize);
        let mut view = self
            .slice
            .try_slice_mut(at..end)
            .ok_or_else(|| out_of_block("clearing", offset, bytes as usize))?;
        self.device
            .stream
            .memset_zeros(&mut view)
            .map_err(|e| DeviceError::call("clearing device memory", e))
    }

    /// Length, bytes.
    pub fn len(&self) -> u64 {
        self.slice.len() as u64
    }

    /// Never true: a block has at least 16 bytes.
    pub fn is_empty(&self) -> bool {
        self.slice.len() == 0
    }

    /// Address for writing by a kernel.
    pub fn address_mut(&mut self) -> u64 {
        let stream = self.device.stream.clone();
        self.slice.device_ptr_mut(&stream).0
    }
}

fn out_of_block(what: &str, offset: u64, len: usize) -> DeviceError {
    DeviceError::Driver {
        call: format!("{what} {len} bytes at {offset}"),
        error: "outside the block".to_owned(),
    }
}

/// Two page-locked buffers that are filled in turn: one is copied to the device while the other is filled.
pub struct Staging {
    buffers: [PinnedHostSlice<u8>; 2],
    next: usize,
}

impl Staging {
    /// Two buffers of `bytes` bytes.
    pub fn new(device: &Device, bytes: usize) -> Result<Staging, DeviceError> {
        let take = || {
            // SAFETY: every byte that is copied to the device is written first.
            unsafe { device.context.alloc_pinned::<u8>(bytes) }
                .map_err(|e| DeviceError::call("allocating page-locked memory", e))
        };
        Ok(Staging { buffers: [take()?, take()?], next: 0 })
    }

    /// Copies `bytes` to `offset` of a block, piece by piece. Returns when the last piece has been handed to the
    /// driver; its source is the staging buffer, so `bytes` may go.
    pub fn write(
        &mut self,
        block: &mut Block,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let room = self.buffers[0].len().max(1);
        let mut at = offset as usize;
        for part in bytes.chunks(room) {
            let buffer = &mut self.buffers[self.next];
            self.next = 1 - self.next;
            // Waits for the copy that last used this buffer.
            let filled =
                buffer.as_mut_slice().map_err(|e| DeviceError::call("page-locked memory", e))?;
            filled[..part.len()].copy_from_slice(part);
            let mut view = block
                .slice
                .try_slice_mut(at..at + part.len())
                .ok_or_else(|| out_of_block("writing", at as u64, part.len()))?;
            let stream = block.device.stream.clone();
            copy_pinned(&stream, buffer, part.len(), &mut view)
                .map_err(|e| DeviceError::call("copying to the device", e))?;
            at += part.len();
        }
        Ok(())
    }
}

/// A part of a page-locked buffer, as cudarc takes sources.
struct Part<'a> {
    buffer: &'a PinnedHostSlice<u8>,
    len: usize,
}

impl HostSlice<u8> for Part<'_> {
    fn len(&self) -> usize {
        self.len
    }

    unsafe fn stream_synced_slice<'a>(
        &'a self,
        stream: &'a CudaStream,
    ) -> (&'a [u8], SyncOnDrop<'a>) {
        // SAFETY: as the caller of this function promises for the whole buffer.
        let (all, sync) = unsafe { self.buffer.stream_synced_slice(stream) };
        (&all[..self.len], sync)
    }

    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        _: &'a CudaStream,
    ) -> (&'a mut [u8], SyncOnDrop<'a>) {
        // Only ever a source.
        (&mut [], SyncOnDrop::Sync(None))
    }
}

fn copy_pinned(
    stream: &Arc<CudaStream>,
    buffer: &PinnedHostSlice<u8>,
    len: usize,
    view: &mut CudaViewMut<'_, u8>,
) -> Result<(), DriverError> {
    stream.memcpy_htod(&Part { buffer, len }, view)
}

/// Page-locked words of the host that the device writes while a kernel runs.
pub struct HostWords {
    words: PinnedHostSlice<u32>,
}

impl HostWords {
    /// `len` words, zero.
    pub fn new(device: &Device, len: usize) -> Result<HostWords, DeviceError> {
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: every word is written below before anything reads it.
        let mut words = unsafe { device.context.alloc_pinned_with_flags::<u32>(len, flags) }
            .map_err(|e| DeviceError::call("allocating page-locked memory", e))?;
        words.as_mut_slice().map_err(|e| DeviceError::call("page-locked memory", e))?.fill(0);
        Ok(HostWords { words })
    }

    /// Address the device uses; the same as the host's under unified addressing.
    pub fn address(&self) -> Result<u64, DeviceError> {
        Ok(self.words.as_ptr().map_err(|e| DeviceError::call("page-locked memory", e))? as u64)
    }

    /// The word as it is now, while a kernel may be writing it.
    pub fn load(&self, index: usize) -> Result<u32, DeviceError> {
        let at = self.words.as_ptr().map_err(|e| DeviceError::call("page-locked memory", e))?;
        if index >= self.words.len() {
            return Ok(0);
        }
        // SAFETY: in bounds; volatile because the device writes the word behind the compiler's back.
        Ok(unsafe { at.add(index).read_volatile() })
    }

    /// Sets a word while no kernel runs.
    pub fn store(&mut self, index: usize, value: u32) -> Result<(), DeviceError> {
        let words = self.words.as_mut_slice();
        let words = words.map_err(|e| DeviceError::call("page-locked memory", e))?;
        if let Some(word) = words.get_mut(index) {
            *word = value;
        }
        Ok(())
    }
}
