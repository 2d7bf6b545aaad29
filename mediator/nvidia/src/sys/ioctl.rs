//! The driver's calls. Each returns RM's own status (0 is success); an `io::Error` means that the
//! driver did not get the call.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;

use super::abi::{
    Alloc, AllocParams, Cards, Control, ControlParams, Free, MapMemory, RegisterList,
    RegisterOperation, escape,
};

/// RM's status of a call.
type Status = u32;

/// Makes one call with `argument`.
///
/// # Safety
/// `T` is the argument structure of call `number`, and every address in it is valid for what the
/// call does with it.
unsafe fn call<T>(file: &File, number: u8, argument: &mut T) -> io::Result<()> {
    // SOURCE: `asm-generic/ioctl.h`: direction read and write, size, type 'F', number.
    let request =
        3 << 30 | (size_of::<T>() as u64) << 16 | u64::from(b'F') << 8 | u64::from(number);
    // CAST: the C library's type of a request differs between C libraries.
    let request = request as _;
    loop {
        // SAFETY: the caller promises that the argument is the structure that this request reads
        // and writes; it is borrowed for the whole call.
        let rc = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(argument)) };
        if rc >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Allocates an object of class `class` below `parent`; returns its handle, which the driver
/// chooses.
pub(crate) fn alloc<P: AllocParams>(
    file: &File,
    root: u32,
    parent: u32,
    params: Option<&mut P>,
    class: u32,
) -> io::Result<(Status, u32)> {
    debug_assert!(params.is_none() || class == P::CLASS);
    let mut argument = Alloc {
        root,
        parent,
        new: 0,
        class,
        params: params.map_or(0, |params| std::ptr::from_mut(params) as u64),
        // Zero makes the driver use the length of the class.
        params_size: 0,
        status: 0,
    };
    // SAFETY: this is NVOS21. Its address is null, or of the class's own parameters with room for
    // them, by the contract of `AllocParams`; they are borrowed for the whole call.
    unsafe { call(file, escape::ALLOC, &mut argument)? };
    Ok((argument.status, argument.new))
}

/// Calls a control of an object with parameters.
pub(crate) fn control<P: ControlParams>(
    file: &File,
    client: u32,
    object: u32,
    command: u32,
    params: &mut P,
) -> io::Result<Status> {
    let mut argument = Control {
        client,
        object,
        command,
        flags: 0,
        params: std::ptr::from_mut(params) as u64,
        params_size: size_of::<P>() as u32,
        status: 0,
    };
    // SAFETY: this is NVOS54. The driver reads and writes `params_size` bytes at the address, which
    // are borrowed for the whole call; any bytes are a value of them, by the contract of
    // `ControlParams`.
    unsafe { call(file, escape::CONTROL, &mut argument)? };
    Ok(argument.status)
}

/// Calls a control of an object that takes no parameters.
pub(crate) fn control_empty(
    file: &File,
    client: u32,
    object: u32,
    command: u32,
) -> io::Result<Status> {
    let mut argument = Control {
        client,
        object,
        command,
        flags: 0,
        params: 0,
        params_size: 0,
        status: 0,
    };
    // SAFETY: this is NVOS54 without parameters: no other memory of this process is accessed.
    unsafe { call(file, escape::CONTROL, &mut argument)? };
    Ok(argument.status)
}

/// Frees an object and all below it.
pub(crate) fn free(file: &File, root: u32, object: u32) -> io::Result<Status> {
    let mut argument = Free {
        root,
        parent: 0,
        old: object,
        status: 0,
    };
    // SAFETY: this is NVOS00, which holds no address.
    unsafe { call(file, escape::FREE, &mut argument)? };
    Ok(argument.status)
}

/// How the processor accesses mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caching {
    /// By the memory's own rule: accesses to registers are made in order, each before the next.
    Own,
    /// Writes alone, one word after the other.
    Written,
}

/// Prepares `window` for mapping `length` bytes from `offset` of the memory object `memory`. The
/// window is a new descriptor of the control device, or of the GPU's device for the GPU's own
/// memory. The memory is below `device`; the client itself stands for no device.
pub(crate) fn map_memory(
    file: &File,
    client: u32,
    device: u32,
    memory: u32,
    (offset, length): (u64, u64),
    window: &File,
    caching: Caching,
) -> io::Result<Status> {
    /// SOURCE: `nvos.h`: NVOS33_FLAGS_ACCESS_READ_ONLY.
    const READ_ONLY: u32 = 1;
    /// SOURCE: `nvos.h`: NVOS33_FLAGS_ACCESS_WRITE_ONLY.
    const WRITE_ONLY: u32 = 2;
    let flags = match caching {
        Caching::Own => READ_ONLY,
        Caching::Written => WRITE_ONLY,
    };
    let mut argument = MapMemory {
        client,
        device,
        memory,
        pad: 0,
        offset,
        length,
        linear_address: 0,
        status: 0,
        flags,
        fd: window.as_raw_fd(),
        pad2: 0,
    };
    // SAFETY: this is NVOS33 with a descriptor that is open for the whole call; its address is an
    // output.
    unsafe { call(file, escape::MAP_MEMORY, &mut argument)? };
    Ok(argument.status)
}

/// Assigns the GPU's device file `gpu` to its control file.
pub(crate) fn register_fd(gpu: &File, control: &File) -> io::Result<()> {
    let mut argument: i32 = control.as_raw_fd();
    // SAFETY: the argument of this call is one descriptor, open for the whole call.
    unsafe { call(gpu, escape::REGISTER_FD, &mut argument) }
}

/// The GPUs that the driver has.
pub(crate) fn cards(control: &File) -> io::Result<Cards> {
    let mut cards = Cards::default();
    // SAFETY: the argument is the call's array of cards, without addresses.
    unsafe { call(control, escape::CARD_INFO, &mut cards)? };
    Ok(cards)
}

/// Reads one 32-bit register of the GPU: a list of one read operation.
pub(crate) fn read_register(
    file: &File,
    client: u32,
    subdevice: u32,
    command: u32,
    offset: u32,
) -> io::Result<(Status, u32)> {
    let mut operation = RegisterOperation {
        offset,
        ..Default::default()
    };
    let mut list = RegisterList {
        count: 1,
        operations: std::ptr::from_mut(&mut operation) as u64,
        ..Default::default()
    };
    let mut argument = Control {
        client,
        object: subdevice,
        command,
        flags: 0,
        params: std::ptr::from_mut(&mut list) as u64,
        params_size: size_of::<RegisterList>() as u32,
        status: 0,
    };
    // SAFETY: this is NVOS54. The driver reads and writes the list and the one operation that it
    // names; both consist of integers and live until the call is over.
    unsafe { call(file, escape::CONTROL, &mut argument)? };
    // SAFETY: the operation is a local variable, and any bytes are a value of it. Volatile: the
    // driver wrote through an address that the compiler saw become a number.
    let operation = unsafe { std::ptr::from_ref(&operation).read_volatile() };
    let status = match (argument.status, operation.status) {
        (0, 0) => 0,
        (0, refused) => u32::from(refused),
        (status, _) => status,
    };
    Ok((status, operation.value_low))
}
