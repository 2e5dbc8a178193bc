//! `bench feed`: many subscribers of the live feed, half of which never read: their cost, and the delay of
//! the others; and subscribers that disconnect and resume, which must have no gap and no duplicate.
//!
//! In development mode, where subscribers need no certificates: with TLS one identity may have five.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use hdrhistogram::Histogram;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::load::as_f64;
use crate::node::{Node, Start};
use crate::overload::Cores;
use crate::report::{Report, mib, ms};
use crate::sse::{self, Events};
use crate::wire::{self, Target};

/// Connections for tool registrations.
const WRITERS: u32 = 16;
/// Subscribers of the comparison.
const FEW: usize = 10;
/// Subscribers that disconnect and resume, and how many events each reads before.
const RETURNING: usize = 50;
const READ_BEFORE_CUT: u32 = 37;
/// Receive buffer of a stalled subscriber, small so that it fills soon.
const STALLED_BUFFER_BYTES: u32 = 4096;
/// Maximum wait for the last events after the last write.
const LAST_EVENTS_MAX: Duration = Duration::from_secs(30);

#[derive(clap::Args, Clone, Copy)]
pub struct Size {
    /// Subscribers, half of which never read
    #[arg(long, default_value_t = 1_000)]
    readers: usize,
    /// Tool registrations per second, each of which is an event
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 10)]
    seconds: u32,
}

/// Events received in one measurement.
struct ReceivedEvents {
    /// From the response of the write to the event, in microseconds; 0 if the event came first.
    latency: Histogram<u64>,
    missed: u64,
    repeated: u64,
}

pub async fn run(start: &Start, cores: Cores, size: Size) -> Result<bool> {
    let node = Start { plain: true, ..start.clone() }.node(Some(cores.node_core)).await?;
    let mut report = Report::new("Live feed");
    report.line(&format!(
        "{} tools registered in a second for {} s. Of so many readers some never read. Milliseconds from the answer\n\
         of a write to its event at each reader that reads, and of the write itself; memory of the node is resident,\n\
         in MiB.\n",
        size.rate, size.seconds
    ));
    report.table(&[
        "readers",
        "of them stalled",
        "memory before",
        "all open",
        "highest",
        "delay p50",
        "p99",
        "written p50",
        "p99",
        "missed",
        "repeated",
    ]);
    for (at, (reading, stalled)) in [(FEW, 0), (size.readers / 2, size.readers / 2)].into_iter().enumerate() {
        measure(&mut report, &node, size, &format!("m{at}"), (reading, stalled)).await?;
    }
    returning(&mut report, &node, size).await?;
    report.finish(start.output.as_deref())
}

async fn measure(
    report: &mut Report,
    node: &Node,
    size: Size,
    name: &str,
    (reading, stalled): (usize, usize),
) -> Result<()> {
    let events = size.rate * size.seconds;
    let (before, _) = node.memory_kib()?;
    node.reset_peak();
    let mut held = Vec::new();
    for _ in 0..stalled {
        held.push(open(&node.http, None, Some(STALLED_BUFFER_BYTES)).await?);
    }
    let (ended, end) = watch::channel(false);
    let mut readers = JoinSet::new();
    for _ in 0..reading {
        let lines = open(&node.http, None, None).await?;
        let (name, end) = (name.to_owned(), end.clone());
        readers.spawn(async move { lines.arrivals(&name, events, end).await });
    }
    let (open, _) = node.memory_kib()?;
    let written = write(&node.http, name, size).await?;
    ended.send_replace(true);
    let mut heard = ReceivedEvents { latency: Histogram::new(3)?, missed: 0, repeated: 0 };
    while let Some(arrivals) = readers.join_next().await {
        heard.add(&arrivals??, &written)?;
    }
    let (_, peak) = node.memory_kib()?;
    drop(held);
    let mut answers = Histogram::<u64>::new(3)?;
    for written in &written {
        answers.record(micros(written.took))?;
    }
    let quantile = |histogram: &Histogram<u64>, at| ms(as_f64(histogram.value_at_quantile(at)) / 1000.0);
    report.row(&[
        (reading + stalled).to_string(),
        stalled.to_string(),
        mib(before),
        mib(open),
        mib(peak),
        quantile(&heard.latency, 0.5),
        quantile(&heard.latency, 0.99),
        quantile(&answers, 0.5),
        quantile(&answers, 0.99),
        heard.missed.to_string(),
        heard.repeated.to_string(),
    ]);
    report.fail(heard.missed + heard.repeated);
    Ok(())
}

/// Subscribers that disconnect in the middle of the feed and resume from their last id.
async fn returning(report: &mut Report, node: &Node, size: Size) -> Result<()> {
    const NAME: &str = "back";
    let events = size.rate * size.seconds;
    let mut readers = JoinSet::new();
    for _ in 0..RETURNING {
        let mut lines = open(&node.http, None, None).await?;
        let target = node.http.clone();
        readers.spawn(async move {
            let (mut heard, mut connections) = (vec![0_u32; events as usize], 1_u32);
            let mut left = READ_BEFORE_CUT;
            let last = Instant::now() + Duration::from_secs(size.seconds.into()) + LAST_EVENTS_MAX;
            while heard.contains(&0) && Instant::now() < last {
                let next = tokio::time::timeout_at(last.into(), lines.next(NAME)).await;
                let Ok(event) = next else { break };
                if let Some(count) = event?.and_then(|number| heard.get_mut(number as usize)) {
                    *count += 1;
                }
                left -= 1;
                if left == 0 {
                    let last_id = lines.0.last_id.clone().context("no id")?;
                    lines = open(&target, Some(&last_id), None).await?;
                    (connections, left) = (connections + 1, READ_BEFORE_CUT);
                }
            }
            anyhow::Ok((heard, connections))
        });
    }
    write(&node.http, NAME, size).await?;
    let (mut missed, mut repeated, mut connections) = (0, 0, 0);
    while let Some(ended) = readers.join_next().await {
        let (heard, opened) = ended??;
        missed += heard.iter().filter(|heard| **heard == 0).count() as u64;
        repeated += heard.iter().map(|heard| u64::from(heard.saturating_sub(1))).sum::<u64>();
        connections += opened;
    }
    report.line(&format!(
        "\n{RETURNING} readers that closed their connection after every {READ_BEFORE_CUT} events and came back with their \
         last id, over {connections} connections: of {events} events for each, {missed} were missed and {repeated} \
         came twice."
    ));
    report.fail(missed + repeated);
    Ok(())
}

/// An answered write.
struct Written {
    answered: Instant,
    took: Duration,
}

/// Registers tools at the rate, in open loop. Returns the time of each response by number.
async fn write(target: &Target, name: &str, size: Size) -> Result<Vec<Written>> {
    let begun = Instant::now();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (target, name) = (target.clone(), name.to_owned());
        writers.spawn(async move {
            let mut connection = target.connect().await?;
            let mut written = Vec::new();
            for number in (writer..size.rate * size.seconds).step_by(WRITERS as usize) {
                let due = begun + Duration::from_secs_f64(f64::from(number) / f64::from(size.rate));
                tokio::time::sleep_until(due.into()).await;
                let body = json!({"tool_id": format!("{name}-{number}"), "name": "bench"}).to_string();
                let request = wire::request_with("POST", "/v1/tools", &target.host, "", body.as_bytes());
                let (status, _) = connection.call_status(&request).await?;
                if status != 201 {
                    bail!("a tool is answered {status}");
                }
                let answered = Instant::now();
                written.push((number, Written { answered, took: answered.duration_since(due) }));
            }
            anyhow::Ok(written)
        });
    }
    let mut all = Vec::new();
    while let Some(written) = writers.join_next().await {
        all.extend(written??);
    }
    all.sort_unstable_by_key(|(number, _)| *number);
    Ok(all.into_iter().map(|(_, written)| written).collect())
}

/// Subscribes to tools, optionally after an id, and waits for the head of the response.
async fn open(target: &Target, last_id: Option<&str>, buffer: Option<u32>) -> Result<Lines> {
    let stream = target.connect_tcp_with(buffer).await?;
    Ok(Lines(sse::open(stream, "/v1/events?types=tool", &target.host, last_id).await?))
}

/// Events of the feed.
struct Lines(Events<TcpStream>);

impl Lines {
    /// The next event: the number of its tool, if it belongs to this measurement.
    async fn next(&mut self, name: &str) -> io::Result<Option<u32>> {
        Ok(number_in(&self.0.next().await?.data, name))
    }

    /// Time of each event, until all arrived or for a while after the last write.
    async fn arrivals(
        mut self,
        name: &str,
        events: u32,
        mut ended: watch::Receiver<bool>,
    ) -> Result<Vec<(u32, Instant)>> {
        let mut arrivals = Vec::with_capacity(events as usize);
        let too_late = async {
            drop(ended.wait_for(|ended| *ended).await);
            tokio::time::sleep(LAST_EVENTS_MAX).await;
        };
        let mut too_late = std::pin::pin!(too_late);
        while arrivals.len() < events as usize {
            tokio::select! {
                number = self.next(name) => match number {
                    Ok(number) => arrivals.extend(number.map(|number| (number, Instant::now()))),
                    // Disconnected: later events count as missed.
                    Err(_) => break,
                },
                () = &mut too_late => break,
            }
        }
        Ok(arrivals)
    }
}

fn number_in(data: &str, name: &str) -> Option<u32> {
    let subject = data.split_once("\"subject\":\"")?.1.split_once('"')?.0;
    subject.strip_prefix(name)?.strip_prefix('-')?.parse().ok()
}

impl ReceivedEvents {
    fn add(&mut self, arrivals: &[(u32, Instant)], written: &[Written]) -> Result<()> {
        let mut counts = vec![0_u64; written.len()];
        for (number, arrived) in arrivals {
            let Some((count, written)) = counts.get_mut(*number as usize).zip(written.get(*number as usize))
            else {
                continue;
            };
            *count += 1;
            self.latency.record(micros(arrived.saturating_duration_since(written.answered)))?;
        }
        self.missed += counts.iter().filter(|count| **count == 0).count() as u64;
        self.repeated += counts.iter().map(|count| count.saturating_sub(1)).sum::<u64>();
        Ok(())
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_event_is_that_of_its_own_measurement() {
        assert_eq!(number_in(r#"{"type":"tool","subject":"m1-42","result":"ok"}"#, "m1"), Some(42));
        for other in [r#"{"subject":"m10-4"}"#, r#"{"subject":"m1-x"}"#, r#"{"first_available":null}"#] {
            assert_eq!(number_in(other, "m1"), None, "{other}");
        }
    }
}
