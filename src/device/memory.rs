//! Device memory blocks and host words the device writes.

use std::sync::Arc;

use cudarc::driver::result::DriverError;
use cudarc::driver::{
    CudaEvent, CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, HostSlice,
    PinnedHostSlice, SyncOnDrop, sys,
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

/// Two buffers that are filled in turn, each to be waited for before it is filled again.
trait Pipe {
    /// Waits until nothing reads buffer `slot` any more.
    fn wait(&mut self, slot: usize) -> Result<(), DeviceError>;
    /// Fills buffer `slot` with a part and begins to copy it to `at`.
    fn send(&mut self, slot: usize, at: u64, part: &[u8]) -> Result<(), DeviceError>;
}

/// Sends `bytes` to `at ..` in parts of at most `room` bytes through the two buffers; `next` is the one whose turn it is.
fn in_turn(
    pipe: &mut impl Pipe,
    next: &mut usize,
    room: usize,
    at: u64,
    bytes: &[u8],
) -> Result<(), DeviceError> {
    for (i, part) in bytes.chunks(room.max(1)).enumerate() {
        pipe.wait(*next)?;
        pipe.send(*next, at + (i * room.max(1)) as u64, part)?;
        *next = 1 - *next;
    }
    Ok(())
}

/// Two page-locked buffers that are filled in turn: one is copied to the device while the other is filled.
pub struct Staging {
    slots: [Slot; 2],
    next: usize,
}

/// A buffer, and the end of the copy that reads it. cudarc's own event of the buffer is recorded only while it tracks
/// events, which [`Device`] has it not do.
struct Slot {
    buffer: PinnedHostSlice<u8>,
    copied: Option<CudaEvent>,
}

impl Staging {
    /// Two buffers of `bytes` bytes.
    pub fn new(device: &Device, bytes: usize) -> Result<Staging, DeviceError> {
        let take = || {
            // SAFETY: every byte that is copied to the device is written first.
            unsafe { device.context.alloc_pinned::<u8>(bytes) }
                .map(|buffer| Slot { buffer, copied: None })
                .map_err(|e| DeviceError::call("allocating page-locked memory", e))
        };
        Ok(Staging { slots: [take()?, take()?], next: 0 })
    }

    /// Copies `bytes` to `offset` of a block, piece by piece. Returns when the last piece has been handed to the
    /// driver; its source is the staging buffer, so `bytes` may go.
    pub fn write(
        &mut self,
        block: &mut Block,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let room = self.slots[0].buffer.len();
        let mut pipe = Filling { slots: &mut self.slots, block };
        in_turn(&mut pipe, &mut self.next, room, offset, bytes)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // A copy under way must not lose its source.
        for copied in self.slots.iter().filter_map(|s| s.copied.as_ref()) {
            let _ = copied.synchronize();
        }
    }
}

struct Filling<'a> {
    slots: &'a mut [Slot; 2],
    block: &'a mut Block,
}

impl Pipe for Filling<'_> {
    fn wait(&mut self, slot: usize) -> Result<(), DeviceError> {
        match self.slots[slot].copied.take() {
            Some(copied) => {
                copied.synchronize().map_err(|e| DeviceError::call("copying to the device", e))
            }
            None => Ok(()),
        }
    }

    fn send(&mut self, slot: usize, at: u64, part: &[u8]) -> Result<(), DeviceError> {
        let failed = |e| DeviceError::call("copying to the device", e);
        let Slot { buffer, copied } = &mut self.slots[slot];
        buffer.as_mut_slice().map_err(failed)?[..part.len()].copy_from_slice(part);
        let from = at as usize;
        let mut view = self
            .block
            .slice
            .try_slice_mut(from..from + part.len())
            .ok_or_else(|| out_of_block("writing", at, part.len()))?;
        let stream = self.block.device.stream.clone();
        copy_pinned(&stream, buffer, part.len(), &mut view).map_err(failed)?;
        *copied = Some(stream.record_event(None).map_err(failed)?);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies that end only when they are waited for.
    #[derive(Default)]
    struct Slow {
        buffers: [Option<(u64, Vec<u8>)>; 2],
        memory: Vec<u8>,
    }

    impl Pipe for Slow {
        fn wait(&mut self, slot: usize) -> Result<(), DeviceError> {
            if let Some((at, bytes)) = self.buffers[slot].take() {
                let end = at as usize + bytes.len();
                self.memory.resize(self.memory.len().max(end), 0);
                self.memory[at as usize..end].copy_from_slice(&bytes);
            }
            Ok(())
        }
        fn send(&mut self, slot: usize, at: u64, part: &[u8]) -> Result<(), DeviceError> {
            assert!(self.buffers[slot].is_none(), "buffer {slot} is still being read");
            self.buffers[slot] = Some((at, part.to_vec()));
            Ok(())
        }
    }

    #[test]
    fn a_buffer_is_not_refilled_while_it_is_read() {
        let bytes: Vec<u8> = (0..1003u32).map(|i| (i % 251) as u8).collect();
        let (mut pipe, mut next) = (Slow::default(), 0);
        // Many writes of many sizes, through buffers of ten bytes.
        let mut at = 0;
        for size in [1, 9, 10, 11, 35, 200, 737] {
            in_turn(&mut pipe, &mut next, 10, at as u64, &bytes[at..at + size]).unwrap();
            at += size;
        }
        for slot in 0..2 {
            pipe.wait(slot).unwrap();
        }
        assert_eq!(pipe.memory, bytes);
    }
}
