//! `turnstile bench swap`: a tenant's memory to the host and back under an endless kernel, against
//! the link's rate and the vendor's own checkpoint.

mod report;
mod tenant;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use turnstile_accounting::Nanos;
use turnstile_figures::output::OutputArgs;
use turnstile_nvidia::hold::{Channel, ChannelSwitch, HardwareSwitch};
use turnstile_nvidia::mover::{
    Away, Back, EXTENT_BYTES_MAX, Mover, MoverConfig, MoverError, Resident, Stayed, parts,
    parts_from,
};
use turnstile_nvidia::rm::RmClient;
use turnstile_nvidia::swapped::{checkpoint, link_rates};
use turnstile_nvidia::version::{self, DriverAbi};

use super::GpuArg;
use report::{Report, Returned, Size, Vendor, Way, print};
use tenant::Tenant;
use turnstile_nvidia::commands::mover_command;

/// Bytes of a copy that measures the link.
const LINK_BYTES: usize = 1 << 30;
/// Memory of the tenant for [`Returned`].
const RETURNED_BYTES: u64 = 2 << 30;
/// TIMEOUT: 2.2 GiB a second are pinned (measured).
const POOL_LIMIT: Duration = Duration::from_secs(120);
/// Between out and in.
const PAUSE: Duration = Duration::from_millis(100);
/// Size of an allocation when free memory is measured.
const PROBE_BYTES: u64 = 64 << 20;

/// Arguments of `bench swap`.
#[derive(clap::Args, Debug)]
pub(super) struct SwapArgs {
    /// GPU
    #[arg(long, value_enum, default_value_t = GpuArg::Nvidia)]
    gpu: GpuArg,
    /// Its number
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Sizes, in GiB
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    gib: Vec<u64>,
    /// Memory behind one handle, in MiB; by default as the daemon's
    #[arg(long, value_parser = clap::value_parser!(u64).range(2..=4096))]
    extent_mib: Option<u64>,
    /// Memory behind the first and the last handle, in MiB, where all is 512 MiB and more; by
    /// default as the daemon's
    #[arg(long, conflicts_with = "extent_mib", value_parser = clap::value_parser!(u64).range(2..=4096))]
    edge_mib: Option<u64>,
    /// Times that each is moved; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Leave the vendor's checkpoint out for more than this, in GiB
    #[arg(long, default_value_t = 32)]
    checkpoint_gib: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// Moves memory and suspends channels.
struct Hands<'a> {
    client: RmClient,
    driver: &'a DriverAbi,
    mover: Mover,
    link: [u64; 2],
    device: u32,
    /// Bytes behind one handle, if given.
    extent_bytes: Option<u64>,
    /// Bytes behind the first and the last one, if given.
    edge_bytes: Option<u64>,
}

fn ns(of: Duration) -> u64 {
    // CAST: 584 years.
    of.as_nanos() as u64
}

/// One round trip.
struct Trip {
    suspend: Duration,
    resume: Duration,
    out: [Duration; 3],
    back: [Duration; 3],
}

impl Hands<'_> {
    fn set(&self, channels: &[Channel], suspended: bool) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        HardwareSwitch::new(&self.client, self.driver).set(channels, suspended)?;
        Ok(begin.elapsed())
    }

    fn make(&self, bytes: u64) -> anyhow::Result<Vec<Resident>> {
        let parts = match (self.extent_bytes, self.edge_bytes) {
            (Some(extent), _) => vec![extent; (bytes / extent) as usize],
            (None, Some(edge)) => parts_from(bytes, EXTENT_BYTES_MAX, edge),
            (None, None) => parts(bytes, EXTENT_BYTES_MAX),
        };
        let make = |bytes| Ok(self.mover.create(bytes)?);
        parts.into_iter().map(make).collect()
    }

    fn give(&self, tenant: &mut Tenant, memory: &[Resident]) -> anyhow::Result<()> {
        let share = |memory: &Resident| Ok((memory.bytes(), memory.share()?));
        let handles: std::io::Result<Vec<_>> = memory.iter().map(share).collect();
        Ok(tenant.process()?.map(0, handles?)?)
    }

    /// Moves the memory out and in once; `between` runs while the host has it.
    fn trip(
        &self,
        tenant: &mut Tenant,
        memory: &mut Vec<Resident>,
        between: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Trip> {
        let channels = tenant.channels.clone();
        let (mut stopped, mut failed) = (None, None);
        let mut unmapping = Duration::ZERO;
        let mut unmap = |_| -> anyhow::Result<()> {
            // While the mover maps the memory, the tenant runs.
            if stopped.is_none() {
                let suspend = self.set(&channels, true)?;
                stopped = Some((suspend, Instant::now()));
            }
            let begin = Instant::now();
            tenant.process()?.unmap()?;
            unmapping += begin.elapsed();
            Ok(())
        };
        let when = |nth| match unmap(nth) {
            Ok(()) => true,
            Err(error) => {
                failed.get_or_insert(error);
                false
            }
        };
        let (mut link, mut away, mut not_moved) = (Duration::ZERO, Vec::new(), None);
        let each = |moved: Result<(Away, Nanos), Stayed>| match moved {
            Ok((copy, took)) => {
                link += Duration::from_nanos(took.0);
                away.push(copy);
            }
            Err(error) => not_moved = Some(error),
        };
        self.mover.out_each(std::mem::take(memory), when, each);
        if let Some(error) = failed {
            return Err(error);
        }
        if let Some(error) = not_moved {
            return Err(error.into());
        }
        let (suspend, begin) = stopped.context("the mover did not begin")?;
        let out = [begin.elapsed(), unmapping, link];
        between()?;
        // The driver clears freed memory, on a copy engine as well.
        thread::sleep(PAUSE);
        let begin = Instant::now();
        let (mut link, mut mapping) = (Duration::ZERO, Duration::ZERO);
        let mut given = Ok(());
        self.mover.back_each(away, |moved| {
            let give = || -> anyhow::Result<()> {
                let Back {
                    memory: resident,
                    took,
                    ..
                } = moved?;
                link += Duration::from_nanos(took.0);
                let begin = Instant::now();
                let (handle, bytes) = (resident.share()?, resident.bytes());
                let offset = memory.iter().map(Resident::bytes).sum();
                memory.push(resident);
                tenant.process()?.map(offset, vec![(bytes, handle)])?;
                mapping += begin.elapsed();
                Ok(())
            };
            if given.is_ok() {
                given = give();
            }
        });
        given?;
        let back = [begin.elapsed(), mapping, link];
        let resume = self.set(&channels, false)?;
        Ok(Trip {
            suspend,
            resume,
            out,
            back,
        })
    }

    fn way(&self, trips: &mut [Trip], bytes: u64, direction: usize) -> Way {
        let of = |trip: &Trip| if direction == 0 { trip.out } else { trip.back };
        trips.sort_by_key(|trip| of(trip)[0]);
        let [took, tenant, link] = of(&trips[trips.len() / 2]);
        let rate = bytes as f64 / took.as_secs_f64();
        Way {
            took_ns: ns(took),
            tenant_ns: ns(tenant),
            link_ns: ns(link),
            // CAST: some 10^10.
            bytes_per_second: rate as u64,
            percent_of_link: 100.0 * rate / self.link[direction] as f64,
        }
    }

    fn size(&self, folder: &Path, gib: u64, args: &SwapArgs) -> anyhow::Result<Size> {
        let bytes = gib << 30;
        let mut tenant = Tenant::start(folder, self.device, bytes, false)?;
        let mut memory = self.make(bytes)?;
        self.give(&mut tenant, &memory)?;
        tenant.process()?.begin()?;
        let running = tenant.pace()?;
        let channels = tenant.channels.clone();
        self.set(&channels, true)?;
        let suspended = tenant.pace()?;
        self.set(&channels, false)?;
        let mut trips = Vec::new();
        for _ in 0..args.rounds {
            trips.push(self.trip(&mut tenant, &mut memory, || Ok(()))?);
        }
        let after = tenant.pace()?;
        let wrong_words = tenant.process()?.end()?;
        let extents = memory.len();
        drop((memory, tenant));
        let (out, back) = (
            self.way(&mut trips, bytes, 0),
            self.way(&mut trips, bytes, 1),
        );
        let median = |of: fn(&Trip) -> Duration| {
            let mut all: Vec<u64> = trips.iter().map(|trip| ns(of(trip))).collect();
            all.sort_unstable();
            all[all.len() / 2]
        };
        let (suspend_ns, resume_ns) = (median(|t| t.suspend), median(|t| t.resume));
        let ours = [suspend_ns + out.took_ns, resume_ns + back.took_ns];
        let (vendor, vendor_missing) = if gib > args.checkpoint_gib {
            (None, Some("left out, as requested".to_owned()))
        } else {
            match self.vendor(folder, bytes, ours) {
                Ok(vendor) => (Some(vendor), None),
                Err(error) => (None, Some(format!("{error:#}"))),
            }
        };
        Ok(Size {
            gib,
            extents,
            suspend_ns,
            resume_ns,
            out,
            r#in: back,
            counts: [running, suspended, after],
            wrong_words,
            vendor,
            vendor_missing,
        })
    }

    /// The vendor's checkpoint waits for kernels, so its tenant has none.
    fn vendor(&self, folder: &Path, bytes: u64, ours: [u64; 2]) -> anyhow::Result<Vendor> {
        let mut tenant = Tenant::start(folder, self.device, bytes, true)?;
        let pid = tenant.process()?.pid;
        let [lock, out, back, unlock] = checkpoint(pid).map_err(anyhow::Error::from)?;
        let (out_ns, in_ns) = (ns(lock + out), ns(back + unlock));
        Ok(Vendor {
            out_ns,
            in_ns,
            out_times: out_ns as f64 / ours[0] as f64,
            in_times: in_ns as f64 / ours[1] as f64,
            wrong_words: tenant.process()?.end()?,
        })
    }

    /// What another process can allocate now: it allocates all, and frees it.
    fn allocatable(&self) -> anyhow::Result<u64> {
        let mut all = Vec::new();
        loop {
            match self.mover.create(PROBE_BYTES) {
                Ok(memory) => all.push(memory),
                Err(MoverError::NoRoom) => return Ok(all.len() as u64 * PROBE_BYTES),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn returned(&self, folder: &Path) -> anyhow::Result<Returned> {
        let bytes = RETURNED_BYTES;
        let mut tenant = Tenant::start(folder, self.device, bytes, false)?;
        let mut memory = self.make(bytes)?;
        self.give(&mut tenant, &memory)?;
        tenant.process()?.begin()?;
        let resident_bytes = self.allocatable()?;
        let mut swapped_bytes = 0;
        self.trip(&mut tenant, &mut memory, || {
            swapped_bytes = self.allocatable()?;
            Ok(())
        })?;
        let largest = memory.iter().max_by_key(|part| part.bytes());
        let largest = largest.context("the tenant has no memory")?;
        let (leaked, leaked_handle_bytes) = (largest.share()?, largest.bytes());
        let mut leaked_bytes = 0;
        self.trip(&mut tenant, &mut memory, || {
            leaked_bytes = self.allocatable()?;
            Ok(())
        })?;
        drop(leaked);
        ensure!(
            tenant.process()?.end()? == 0,
            "the tenant's memory is not what it was"
        );
        Ok(Returned {
            tenant_bytes: bytes,
            resident_bytes,
            swapped_bytes,
            leaked_handle_bytes,
            leaked_bytes,
        })
    }
}

pub(super) fn run(args: &SwapArgs) -> anyhow::Result<()> {
    let GpuArg::Nvidia = args.gpu;
    let driver = version::detect()?;
    let folder = tempfile::Builder::new()
        .prefix("turnstile-bench")
        .tempdir()?;
    let largest = args.gib.iter().max().copied().unwrap_or(1).max(1) << 30;
    let largest = largest.max(RETURNED_BYTES);
    let link = link_rates(args.device, LINK_BYTES)?;
    let begin = Instant::now();
    let config = MoverConfig::new(args.device, largest);
    let mover = Mover::start(config, mover_command()?)?;
    let grown = mover.wait_grown(largest, POOL_LIMIT);
    ensure!(grown, "The host has no {} GiB to pin", largest >> 30);
    let pinned = largest as f64 / begin.elapsed().as_secs_f64();
    let hands = Hands {
        client: RmClient::open(args.device)?,
        driver: &driver,
        mover,
        link,
        device: args.device,
        extent_bytes: args.extent_mib.map(|mib| mib << 20),
        edge_bytes: args.edge_mib.map(|mib| mib << 20),
    };
    let mut sizes = Vec::new();
    for gib in &args.gib {
        sizes.push(hands.size(folder.path(), *gib, args)?);
    }
    let report = Report {
        driver: driver.version,
        link_out_bytes_per_second: link[0],
        link_in_bytes_per_second: link[1],
        // CAST: some 10^9.
        pinning_bytes_per_second: pinned as u64,
        sizes,
        returned: hands.returned(folder.path())?,
    };
    Ok(args.output.print(&report, print)?)
}
