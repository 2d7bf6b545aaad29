//! Channels and channel groups of each process, and the devices that they are on.
//!
//! They come from the calls of the process itself ([`super::notify`], or a preloaded library), so
//! they are allegations. A handle may have been refused or freed, or may belong to another process.
//! A caller has to expect that the driver refuses some of them, and holds the rest. The daemon
//! ensures that a client belongs to one process alone.
//!
//! A client may have devices of several GPUs. [`Handles::count_on`] has those of one GPU alone
//! count. An object of which the device was not reported counts on each GPU.
//!
//! The preloaded library writes one line per object, without the object's USERD:
//!
//! ```text
//!   + PID CLIENT HANDLE CLASS PARENT ENGINE     a device, group or channel was made (hexadecimal
//!                                               but PID; ENGINE of a device: number of its GPU)
//!   - PID CLIENT HANDLE                         the object, or one above it, was freed
//! ```

use std::collections::{BTreeMap, BTreeSet};

use turnstile_vmm::wire::{ObjectChange, ProgramObject};

use super::hold::Channel;
use super::sys::abi::{CLASS_CHANNEL_GROUP, CLASS_CHANNEL_LOW_BYTE, CLASS_DEVICE};

/// NV2080_ENGINE_TYPE_GRAPHICS: graphics and compute. SOURCE: `class/cl2080_notification.h`.
pub(super) const ENGINE_GRAPHICS: u32 = 1;

/// Maximum number of objects of a process; a CUDA context has about 24.
const OBJECTS_MAX: usize = 4096;

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// The line does not have the form of the module's header.
    #[error("A line of handles has another form")]
    Form,
    /// The process has more than `OBJECTS_MAX` objects.
    #[error("Process {0} has more than {OBJECTS_MAX} channels and groups")]
    TooMany(u32),
}

/// Whether objects of this class are kept: devices, channel groups and channels.
pub const fn is_kept(class: u32) -> bool {
    class == CLASS_DEVICE || class == CLASS_CHANNEL_GROUP || is_channel(class)
}

/// Whether objects of this class are channels.
pub const fn is_channel(class: u32) -> bool {
    class & 0xff == CLASS_CHANNEL_LOW_BYTE
}

/// Whether the object is a channel group on the compute engine.
const fn is_compute_group(object: &ProgramObject) -> bool {
    object.class == CLASS_CHANNEL_GROUP && object.engine == ENGINE_GRAPHICS
}

/// Parses a line of the preloaded library into its process and its change.
///
/// # Errors
/// If the line has another form.
pub fn parse(line: &str) -> Result<(u32, ObjectChange), HandleError> {
    let mut words = line.split_ascii_whitespace();
    let sign = words.next();
    let pid: u32 = words
        .next()
        .and_then(|word| word.parse().ok())
        .ok_or(HandleError::Form)?;
    let numbers = words
        .map(|word| u32::from_str_radix(word, 16).map_err(|_| HandleError::Form))
        .collect::<Result<Vec<u32>, _>>()?;
    let change = match (sign, &numbers[..]) {
        (Some("+"), &[client, handle, class, parent, engine]) => {
            ObjectChange::Made(ProgramObject {
                client,
                handle,
                class,
                parent,
                engine,
                userd: None,
            })
        }
        (Some("-"), &[client, handle]) => ObjectChange::Freed { client, handle },
        _ => return Err(HandleError::Form),
    };
    Ok((pid, change))
}

/// Objects of a process: (client, handle) -> object.
type Objects = BTreeMap<(u32, u32), ProgramObject>;

/// Channels and channel groups of all processes that report them.
#[derive(Debug, Default)]
pub struct Handles {
    /// Those of each process.
    objects: BTreeMap<u32, Objects>,
    /// The driver's number of the GPU on which they count; all, if none is given.
    gpu: Option<u32>,
}

impl Handles {
    /// Counts from now on those alone that are on the GPU that the driver numbers so.
    pub const fn count_on(&mut self, number: u32) {
        self.gpu = Some(number);
    }

    /// Whether an object of `client` with this parent is on this GPU. A channel's parent is a group
    /// or a device, a group's a device.
    fn is_here(&self, objects: &Objects, client: u32, mut parent: u32) -> bool {
        let Some(gpu) = self.gpu else { return true };
        for _ in 0..2 {
            match objects.get(&(client, parent)) {
                Some(device) if device.class == CLASS_DEVICE => return device.engine == gpu,
                Some(group) => parent = group.parent,
                None => return true,
            }
        }
        true
    }

    /// Applies one line of the preloaded library.
    ///
    /// # Errors
    /// If the line has another form, or the process has too many objects.
    pub fn take(&mut self, line: &str) -> Result<(), HandleError> {
        let (pid, change) = parse(line)?;
        self.apply(pid, &change).map(|_| ())
    }

    /// Applies a change to an object of a process. Returns whether this changed the stored objects:
    /// only channels and groups are stored, and an unknown object may be freed.
    ///
    /// # Errors
    /// If the process has too many objects.
    pub fn apply(&mut self, pid: u32, change: &ObjectChange) -> Result<bool, HandleError> {
        match *change {
            ObjectChange::Made(object) => {
                if !is_kept(object.class) {
                    return Ok(false);
                }
                let objects = self.objects.entry(pid).or_default();
                let key = (object.client, object.handle);
                if objects.len() >= OBJECTS_MAX && !objects.contains_key(&key) {
                    return Err(HandleError::TooMany(pid));
                }
                Ok(objects.insert(key, object) != Some(object))
            }
            ObjectChange::Freed { client, handle } => Ok(self.free(pid, client, handle)),
        }
    }

    /// Frees an object and all below it: a client with everything, a device with its groups, a
    /// group with its channels.
    fn free(&mut self, pid: u32, client: u32, handle: u32) -> bool {
        let Some(objects) = self.objects.get_mut(&pid) else {
            return false;
        };
        let before = objects.len();
        let mut gone = BTreeSet::from([handle]);
        // Twice: a device first takes groups, which then take channels.
        for _ in 0..2 {
            objects.retain(|&(of, own), object| {
                let taken = of == client
                    && (handle == client || own == handle || gone.contains(&object.parent));
                if taken {
                    gone.insert(own);
                }
                !taken
            });
        }
        let changed = objects.len() != before;
        if objects.is_empty() {
            self.objects.remove(&pid);
        }
        changed
    }

    /// Removes a process that is gone.
    pub fn forget(&mut self, pid: u32) {
        self.objects.remove(&pid);
    }

    /// Objects of a process, devices before their groups, and these before their channels.
    pub fn objects(&self, pid: u32) -> Vec<ProgramObject> {
        let mut objects: Vec<ProgramObject> = self
            .objects
            .get(&pid)
            .map(|objects| objects.values().copied().collect())
            .unwrap_or_default();
        let depth = |object: &ProgramObject| match object.class {
            CLASS_DEVICE => 0,
            CLASS_CHANNEL_GROUP => 1,
            _ => 2,
        };
        objects.sort_by_key(depth);
        objects
    }

    /// Number of objects of a process.
    pub fn count(&self, pid: u32) -> usize {
        self.objects.get(&pid).map_or(0, BTreeMap::len)
    }

    /// Processes that have objects.
    pub fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.objects.keys().copied()
    }

    /// The process's channels in groups of the compute engine. Suspending these stops its kernels;
    /// copies continue.
    pub fn compute_channels(&self, pid: u32) -> Vec<Channel> {
        self.channels(pid, |group| group.is_some_and(is_compute_group))
    }

    /// The process's channel groups on the compute engine.
    pub(crate) fn compute_groups(&self, pid: u32) -> Vec<Channel> {
        let Some(objects) = self.objects.get(&pid) else {
            return Vec::new();
        };
        let groups = objects.iter().filter(|((client, _), object)| {
            is_compute_group(object) && self.is_here(objects, *client, object.parent)
        });
        groups
            .map(|((client, handle), _)| Channel {
                client: *client,
                handle: *handle,
            })
            .collect()
    }

    /// All channels of the process.
    pub fn all_channels(&self, pid: u32) -> Vec<Channel> {
        self.channels(pid, |_| true)
    }

    fn channels(&self, pid: u32, wanted: impl Fn(Option<&ProgramObject>) -> bool) -> Vec<Channel> {
        let Some(objects) = self.objects.get(&pid) else {
            return Vec::new();
        };
        let group = |client: u32, object: &ProgramObject| {
            let parent = objects.get(&(client, object.parent));
            parent.filter(|parent| parent.class == CLASS_CHANNEL_GROUP)
        };
        objects
            .iter()
            .filter(|(_, object)| is_channel(object.class))
            .filter(|((client, _), object)| wanted(group(*client, object)))
            .filter(|((client, _), object)| self.is_here(objects, *client, object.parent))
            .map(|((client, handle), _)| Channel {
                client: *client,
                handle: *handle,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn handles() -> Handles {
        let mut handles = Handles::default();
        let log = [
            "+ 77 c1d00001 5c000010 a06c 5c000001 1",
            "+ 77 c1d00001 5c000011 c86f 5c000010 0",
            "+ 77 c1d00001 5c000012 c86f 5c000010 0",
            "+ 77 c1d00001 5c000020 a06c 5c000001 9",
            "+ 77 c1d00001 5c000021 c86f 5c000020 9",
            "+ 78 c1d00002 5c000031 c86f 5c000030 1",
        ];
        for line in log {
            handles.take(line).unwrap();
        }
        handles
    }

    #[test]
    fn compute_channels_are_those_of_the_compute_group() {
        let handles = handles();
        let compute: Vec<u32> = handles
            .compute_channels(77)
            .iter()
            .map(|c| c.handle)
            .collect();
        assert_eq!(compute, [0x5c00_0011, 0x5c00_0012]);
        assert_eq!(handles.all_channels(77).len(), 3);
        assert!(
            handles.compute_channels(78).is_empty(),
            "its group is not known"
        );
        assert_eq!(handles.pids().collect::<Vec<_>>(), [77, 78]);
    }

    #[test]
    fn a_group_takes_its_channels_along() {
        let mut handles = handles();
        handles.take("- 77 c1d00001 5c000010").unwrap();
        assert!(handles.compute_channels(77).is_empty());
        assert_eq!(handles.all_channels(77).len(), 1);
        handles.take("- 77 c1d00001 c1d00001").unwrap();
        assert!(handles.all_channels(77).is_empty());
    }

    #[test]
    fn a_device_takes_its_groups_and_their_channels_along() {
        let mut handles = handles();
        let freed = ObjectChange::Freed {
            client: 0xc1d0_0001,
            handle: 0x5c00_0001,
        };
        assert_eq!(handles.apply(77, &freed), Ok(true));
        assert!(handles.objects(77).is_empty());
        assert_eq!(handles.apply(77, &freed), Ok(false));
        assert_eq!(handles.objects(78).len(), 1);
    }

    #[test]
    fn apply_reports_only_relevant_objects_that_changed() {
        let mut handles = handles();
        let made = |class, engine| {
            ObjectChange::Made(ProgramObject {
                client: 1,
                handle: 2,
                class,
                parent: 3,
                engine,
                userd: None,
            })
        };
        assert_eq!(handles.apply(5, &made(0x2080, 0)), Ok(false));
        assert_eq!(handles.apply(5, &made(0xa06c, 1)), Ok(true));
        assert_eq!(handles.apply(5, &made(0xa06c, 1)), Ok(false));
        assert_eq!(handles.apply(5, &made(0xa06c, 2)), Ok(true));
        assert_eq!(handles.objects(5).len(), 1);
    }

    #[test]
    fn objects_come_with_groups_first() {
        let classes: Vec<u32> = handles().objects(77).iter().map(|o| o.class).collect();
        assert_eq!(classes, [0xa06c, 0xa06c, 0xc86f, 0xc86f, 0xc86f]);
    }

    #[test]
    fn channels_and_groups_count_on_the_gpu_of_their_device() {
        let log = [
            "+ 77 c1d00001 5c000001 80 c1d00001 0",
            "+ 77 c1d00001 5c000002 80 c1d00001 1",
            "+ 77 c1d00001 10 a06c 5c000001 1",
            "+ 77 c1d00001 11 c86f 10 0",
            "+ 77 c1d00001 20 a06c 5c000002 1",
            "+ 77 c1d00001 21 c86f 20 0",
            "+ 77 c1d00001 22 c86f 5c000002 0",
            // Of a client of which no device was reported.
            "+ 77 c1d00002 30 a06c 5c000001 1",
            "+ 77 c1d00002 31 c86f 30 0",
        ];
        let of = |gpu: Option<u32>| {
            let mut handles = Handles::default();
            gpu.into_iter().for_each(|gpu| handles.count_on(gpu));
            log.iter().for_each(|line| handles.take(line).unwrap());
            let named = |channels: Vec<Channel>| {
                let mut named: Vec<u32> = channels.iter().map(|channel| channel.handle).collect();
                named.sort_unstable();
                named
            };
            let groups = named(handles.compute_groups(77));
            (groups, named(handles.all_channels(77)), handles)
        };
        let (groups, channels, _) = of(Some(0));
        assert_eq!((groups, channels), (vec![0x10, 0x30], vec![0x11, 0x31]));
        let (groups, channels, mut second) = of(Some(1));
        assert_eq!(
            (groups, channels),
            (vec![0x20, 0x30], vec![0x21, 0x22, 0x31])
        );
        assert_eq!(second.compute_channels(77).len(), 2);
        assert_eq!(of(None).1.len(), 4, "of all GPUs");
        second.take("- 77 c1d00001 5c000002").unwrap();
        assert_eq!(second.all_channels(77).len(), 1, "freed with their device");
    }

    #[test]
    fn objects_of_a_process_are_limited() {
        let mut handles = Handles::default();
        let made = |handle| {
            ObjectChange::Made(ProgramObject {
                client: 1,
                handle,
                class: 0xc86f,
                parent: 3,
                engine: 0,
                userd: None,
            })
        };
        for handle in 0..OBJECTS_MAX as u32 {
            handles.apply(9, &made(handle)).unwrap();
        }
        let (more, known) = (made(OBJECTS_MAX as u32), made(0));
        assert_eq!(handles.apply(9, &more), Err(HandleError::TooMany(9)));
        assert_eq!(handles.apply(9, &known), Ok(false));
    }

    proptest! {
        #[test]
        fn no_line_does_harm(line in "\\PC*") {
            let mut handles = handles();
            let _ = handles.take(&line);
        }
    }
}
