//! The vfio-user protocol: our server and client with each other, with those of another crate, and
//! against broken or hostile clients.
#![allow(missing_docs)]

mod fake;
mod hostile;
mod messages;
mod oracle;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use fake::{REGS_BYTES, SHARED_BYTES, SUM_AT, VECTORS, memory, served};
use turnstile_vmm::vfio_user::{
    Area, Client, ClientError, Errno, IrqAction, PAGE_BYTES, irq, region,
};

pub(crate) fn eventfd() -> File {
    use rustix::event::{EventfdFlags, eventfd};
    File::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap())
}

pub(crate) fn count(mut eventfd: &File) -> u64 {
    let mut count = [0; 8];
    eventfd
        .read_exact(&mut count)
        .map_or(0, |()| u64::from_ne_bytes(count))
}

#[test]
fn a_client_finds_and_drives_the_device() {
    let (stream, thread) = served();
    let mut client = Client::over(stream).unwrap();
    assert_eq!(client.counts().unwrap(), (region::COUNT, irq::COUNT));

    let regs = client.region(0).unwrap();
    assert_eq!(
        (regs.bytes, regs.readable, regs.writable),
        (REGS_BYTES, true, true)
    );
    assert!(regs.areas.is_empty() && regs.file.is_none());
    let shared = client.region(2).unwrap();
    let area = |offset| Area {
        offset,
        bytes: 0x1000,
    };
    assert_eq!(shared.bytes, SHARED_BYTES);
    assert_eq!(shared.areas, [area(0), area(0x2000)]);
    assert_eq!(shared.file.unwrap().metadata().unwrap().len(), SHARED_BYTES);
    assert_eq!(client.region(1).unwrap().bytes, 0);
    assert_eq!(client.irq(irq::MSIX).unwrap().count, VECTORS);
    assert_eq!(client.irq(irq::INTX).unwrap().count, 0);

    let mut data = [0; 4];
    client.write(0, 0x100, &[1, 2, 3, 4]).unwrap();
    client.read(0, 0x100, &mut data).unwrap();
    assert_eq!(data, [1, 2, 3, 4]);
    client.read(region::CONFIG, 0xfc, &mut data).unwrap();
    assert_eq!(data, [0xfc, 0xfd, 0xfe, 0xff]);

    let ram = memory(0x10000);
    ram.write_all_at(&[3; 64], 0x2040).unwrap();
    let eventfds = [eventfd(), eventfd()];
    client
        .set_eventfds(irq::MSIX, 0, &[eventfds[0].as_fd(), eventfds[1].as_fd()])
        .unwrap();
    client
        .dma_map(0x8000_0000, 0x4000, Some((ram.as_fd(), 0x1000)))
        .unwrap();
    client
        .write(0, SUM_AT, &0x8000_1040_u64.to_le_bytes())
        .unwrap();
    let mut sum = [0; 8];
    ram.read_exact_at(&mut sum, 0x2080).unwrap();
    assert_eq!((u64::from_le_bytes(sum), count(&eventfds[0])), (192, 1));
    client
        .act_on_irqs(irq::MSIX, 1, 1, IrqAction::Trigger)
        .unwrap();
    assert_eq!(count(&eventfds[1]), 1);
    client.clear_eventfds(irq::MSIX).unwrap();
    client
        .act_on_irqs(irq::MSIX, 1, 1, IrqAction::Trigger)
        .unwrap();
    assert_eq!(count(&eventfds[1]), 0);
    client.dma_unmap(0x8000_0000, 0x4000).unwrap();
    client.reset().unwrap();
    drop(client);
    let (end, fake) = thread.join().unwrap();
    end.unwrap();
    assert_eq!(fake.resets, 1);
}

#[test]
fn refusals_have_a_reason_and_the_connection_goes_on() {
    let (stream, thread) = served();
    let mut client = Client::over(stream).unwrap();
    let mut data = [0; 8];
    let refused = |result: Result<(), ClientError>| match result {
        Err(ClientError::Refused { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    let outside = [
        (0, REGS_BYTES - 4),
        (0, u64::MAX - 3),
        (1, 0),
        (region::CONFIG, 252),
        (region::CONFIG, 4092),
        (9, 0),
        (u32::MAX, 0),
    ];
    for (index, offset) in outside {
        assert_eq!(
            refused(client.read(index, offset, &mut data)),
            Errno::INVALID
        );
        assert_eq!(refused(client.write(index, offset, &data)), Errno::INVALID);
    }
    let unaligned = [(1, PAGE_BYTES), (0, 0), (0, 100), (!0xfff, 2 * PAGE_BYTES)];
    for (address, bytes) in unaligned {
        assert_eq!(
            refused(client.dma_map(address, bytes, None)),
            Errno::INVALID
        );
    }
    assert_eq!(refused(client.dma_unmap(0x1000, 0x1000)), Errno::NOT_FOUND);
    let eventfd = eventfd();
    let five = [eventfd.as_fd(); 5];
    assert_eq!(
        refused(client.set_eventfds(irq::MSIX, 0, &five)),
        Errno::INVALID
    );
    assert_eq!(
        refused(client.set_eventfds(77, 0, &five[..1])),
        Errno::INVALID
    );
    assert_eq!(
        refused(client.act_on_irqs(irq::MSIX, u32::MAX, 2, IrqAction::Mask)),
        Errno::INVALID
    );
    client.read(0, 0, &mut data).unwrap();
    drop(client);
    thread.join().unwrap().0.unwrap();
}

#[test]
fn malformed_version_reply_fails_the_client() {
    use std::io::Write;
    // Answers of every length to the version, of a wrong number, and none at all.
    for cut in 0..40_usize {
        let (mine, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut answer = vec![0; cut];
        for (at, byte) in [(2, 1), (4, cut as u8), (8, 1), (16, 9)] {
            if at < cut {
                answer[at] = byte;
            }
        }
        (&theirs).write_all(&answer).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(Client::over(mine).is_err(), "{cut}");
    }
}
