//! Which channels belong to which process, as a library preloaded into it saw the driver hand them out.
//!
//! The library appends one line per object to a file:
//!
//! ```text
//!   + PID CLIENT HANDLE CLASS PARENT ENGINE     a channel group or a channel was made (all but PID in hexadecimal)
//!   - PID CLIENT HANDLE                         it, or what it was below, was freed
//! ```
//!
//! The lines come from the tenant and are allegations: a handle that is not its own would let it stop somebody else. A
//! daemon has to check that the client belongs to the process before it uses them.

use std::collections::BTreeMap;

use super::hold::Channel;
use super::sys::abi::{CLASS_CHANNEL_GROUP, CLASS_CHANNEL_LOW_BYTE};

/// NV2080_ENGINE_TYPE_GRAPHICS: graphics and compute. SOURCE: `class/cl2080_notification.h`.
const ENGINE_GRAPHICS: u32 = 1;

/// Objects per process that are kept; a CUDA context has about 24.
const OBJECTS_MAX: usize = 4096;

/// Why a line is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// It has another form.
    #[error("A line of handles has another form")]
    Form,
    /// The process has too many.
    #[error("Process {0} has more than {OBJECTS_MAX} channels and groups")]
    TooMany(u32),
}

#[derive(Clone, Copy, Debug)]
struct Object {
    class: u32,
    parent: u32,
    engine: u32,
}

/// Channels and channel groups of all processes that report them.
#[derive(Debug, Default)]
pub struct Handles {
    /// Process -> (client, handle) -> object.
    objects: BTreeMap<u32, BTreeMap<(u32, u32), Object>>,
}

impl Handles {
    /// Takes one line.
    ///
    /// # Errors
    /// If it is none.
    pub fn take(&mut self, line: &str) -> Result<(), HandleError> {
        let mut words = line.split_ascii_whitespace();
        let sign = words.next();
        let pid: u32 = words
            .next()
            .and_then(|word| word.parse().ok())
            .ok_or(HandleError::Form)?;
        let numbers = words
            .map(|word| u32::from_str_radix(word, 16).map_err(|_| HandleError::Form))
            .collect::<Result<Vec<u32>, _>>()?;
        match (sign, &numbers[..]) {
            (Some("+"), &[client, handle, class, parent, engine]) => {
                let objects = self.objects.entry(pid).or_default();
                if objects.len() >= OBJECTS_MAX {
                    return Err(HandleError::TooMany(pid));
                }
                let object = Object {
                    class,
                    parent,
                    engine,
                };
                objects.insert((client, handle), object);
                Ok(())
            }
            (Some("-"), &[client, handle]) => {
                if let Some(objects) = self.objects.get_mut(&pid) {
                    objects.retain(|&(of, own), object| {
                        // A client that is freed takes all with it, a group its channels.
                        of != client
                            || (handle != client && own != handle && object.parent != handle)
                    });
                }
                Ok(())
            }
            _ => Err(HandleError::Form),
        }
    }

    /// A process is gone.
    pub fn forget(&mut self, pid: u32) {
        self.objects.remove(&pid);
    }

    /// Processes that reported something.
    pub fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.objects.keys().copied()
    }

    /// The process's channels on the compute engine: those in groups of that engine, which is what has to be stopped to
    /// stop its kernels. Copies go on.
    pub fn compute_channels(&self, pid: u32) -> Vec<Channel> {
        self.channels(pid, |group| {
            group.is_some_and(|group| group.engine == ENGINE_GRAPHICS)
        })
    }

    /// All channels of the process.
    pub fn all_channels(&self, pid: u32) -> Vec<Channel> {
        self.channels(pid, |_| true)
    }

    fn channels(&self, pid: u32, wanted: impl Fn(Option<&Object>) -> bool) -> Vec<Channel> {
        let Some(objects) = self.objects.get(&pid) else {
            return Vec::new();
        };
        let group = |client: u32, object: &Object| {
            let parent = objects.get(&(client, object.parent));
            parent.filter(|parent| parent.class == CLASS_CHANNEL_GROUP)
        };
        objects
            .iter()
            .filter(|(_, object)| object.class & 0xff == CLASS_CHANNEL_LOW_BYTE)
            .filter(|((client, _), object)| wanted(group(*client, object)))
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
    fn channels_of_the_compute_group_are_told_from_the_others() {
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

    proptest! {
        #[test]
        fn no_line_does_harm(line in "\\PC*") {
            let mut handles = handles();
            let _ = handles.take(&line);
        }
    }
}
