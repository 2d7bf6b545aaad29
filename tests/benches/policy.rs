//! Duration of a decision: `cargo bench -p turnstile-tests --bench policy`.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use turnstile_accounting::{AccountId, Moment, Nanos, TenantId};
use turnstile_policies::{
    Basis, Membership, POLICIES, PeriodUsage, TenantParams, TenantPeriod, Tuning, Weight,
};

fn period_end(c: &mut Criterion) {
    let mut group = c.benchmark_group("period_end");
    for row in POLICIES {
        for tenants in [10u32, 100, 1000] {
            let Some(mut policy) = row.policy(&Tuning::default()) else {
                continue;
            };
            for id in 0..tenants {
                let weight = Weight::new(1 + id * 7 % 1000).unwrap();
                let membership = Membership {
                    account: AccountId(id),
                    name: "vm",
                };
                let params = TenantParams { weight, cap: None };
                policy
                    .add(TenantId(id), membership, params, Moment(0))
                    .unwrap();
            }
            let mut seen: Vec<TenantPeriod> = (0..tenants)
                .map(|id| TenantPeriod {
                    tenant: TenantId(id),
                    used_ns: Nanos::ZERO,
                    charged_ns: Nanos::ZERO,
                    admitted: true,
                    backlogged: true,
                })
                .collect();
            let (mut end, mut turn) = (Moment(0), 0u64);
            group.bench_function(BenchmarkId::new(row.name, tenants), |b| {
                b.iter(|| {
                    turn += 1;
                    end = end + Nanos::from_ms(1);
                    for (i, part) in seen.iter_mut().enumerate() {
                        // A different eighth of the tenants runs in each period, so that the order
                        // changes.
                        let runs = (i as u64 + turn).is_multiple_of(8);
                        part.used_ns = Nanos(if runs {
                            8_000_000 / u64::from(tenants)
                        } else {
                            0
                        });
                    }
                    policy
                        .period_end(&PeriodUsage {
                            end,
                            basis: Basis::Measured,
                            poll_ns: Nanos::from_ms(1),
                            nonpoll_ns: Nanos::ZERO,
                            tenants: &seen,
                        })
                        .len()
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, period_end);
criterion_main!(benches);
