//! Deliberate breaks of the promises: a test that still passes under the break of its rule proves nothing.
//!
//! Only a build with the feature `breaks` has them. Its program refuses to start until [`VARIABLE`] names one, and no
//! build that is shipped has the feature. In every other build [`active`] is the constant false, so that the compiler
//! removes the code behind it. `docs/proofs/breaks.md` names the tests that find each break.

/// Environment variable that chooses the break of a process: its name, or [`NO_BREAK`].
#[cfg(feature = "breaks")]
pub const VARIABLE: &str = "TRUST_FABRIC_BREAK";

/// Value of [`VARIABLE`] with which every rule holds: the tests must pass then.
#[cfg(feature = "breaks")]
pub const NO_BREAK: &str = "none";

macro_rules! breaks {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// One rule that does not hold.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Break {
            $($(#[$doc])* $variant,)*
        }

        /// Every break with its name.
        #[cfg(feature = "breaks")]
        pub const ALL: &[(&str, Break)] = &[$(($name, Break::$variant)),*];
    };
}

breaks! {
    /// The log writer does not sync: what is acknowledged may be lost in a power cut.
    AcknowledgeBeforeSync = "acknowledge-before-sync";
    /// An entry is applied before it is durable in the log of this node.
    ApplyBeforeDurable = "apply-before-durable";
    /// A linearizable read takes the index of this node for that of the leader.
    SkipReadIndex = "skip-read-index";
    /// A read is answered by a `ReadIndex` request that was sent before the read began.
    ShareReadInFlight = "share-read-in-flight";
    /// The leader counts the response to an earlier append for a later one that ends at the same entry.
    CreditEarlierAppend = "credit-earlier-append";
    /// A revocation is acknowledged while a member may still answer from an older index.
    AcknowledgeWithoutBarrier = "acknowledge-without-barrier";
    /// A repeated signal is acknowledged without the barrier of the first.
    DuplicateWithoutBarrier = "duplicate-without-barrier";
    /// A new leader does not wait until the leases that its predecessor confirmed have expired.
    NoWaitOfNewLeader = "no-wait-of-new-leader";
    /// A lease counts from the answer of the leader, not from the request.
    LeaseFromAnswer = "lease-from-answer";
    /// A request is decided without a freshness lease.
    ServeWithoutLease = "serve-without-lease";
    /// A verification looks up revocations first, and then waits for the lease.
    LeaseAfterLookup = "lease-after-lookup";
    /// A caller is admitted without a lease, so that a block that this node has not applied is missed.
    AdmitWithoutLease = "admit-without-lease";
    /// The command of a caller that is blocked when it is applied changes the state.
    ApplyForBlocked = "apply-for-blocked";
    /// A command is applied as often as it is proposed.
    NoDeduplication = "no-deduplication";
    /// Rows expire by the wall clock of each node.
    ApplyByWallClock = "apply-by-wall-clock";
    /// The leader takes its own wall clock for the median.
    IgnorePeerClocks = "ignore-peer-clocks";
    /// Credentials from before a restore are accepted.
    ForgetEpochFloor = "forget-epoch-floor";
    /// The id of a removed node is allocated again.
    ReuseNodeId = "reuse-node-id";
    /// A member whose disk was set back to an older copy is accepted.
    AcceptSetBackDisk = "accept-set-back-disk";
    /// A verdict is answered before it is in the audit.
    AnswerBeforeAudit = "answer-before-audit";
    /// Credentials of a peer are judged without the revocations in the copy of its ledger.
    IgnorePeerLedger = "ignore-peer-ledger";
    /// Credentials of a peer that was silent for longer than its bound are judged.
    PeerLeaseWithoutBound = "peer-lease-without-bound";
}

/// Whether a rule does not hold in this process: never, without the feature.
#[cfg(not(feature = "breaks"))]
#[must_use]
pub const fn active(_: Break) -> bool {
    false
}

/// Whether a rule does not hold in this process.
#[cfg(feature = "breaks")]
#[must_use]
pub fn active(of_rule: Break) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<Break>> =
        std::sync::LazyLock::new(|| chosen().ok().and_then(|name| named(&name)));
    *CHOSEN == Some(of_rule)
}

/// Announces that this build breaks its promises, if it has the feature.
///
/// # Errors
/// The reason why a build with the feature runs no node.
#[cfg(not(feature = "breaks"))]
pub const fn announce(_: &mut impl std::io::Write) -> Result<(), String> {
    Ok(())
}

/// Announces that this build breaks its promises.
///
/// # Errors
/// The reason why it runs no node.
#[cfg(feature = "breaks")]
pub fn announce(to: &mut impl std::io::Write) -> Result<(), String> {
    let name = chosen()?;
    if named(&name).is_none() && name != NO_BREAK {
        return Err(format!("{VARIABLE}: there is no break `{name}`"));
    }
    let warning = "THIS BUILD BREAKS ITS PROMISES ON PURPOSE, FOR TESTS ONLY";
    writeln!(to, "{warning}: {VARIABLE}={name}").map_err(|error| error.to_string())
}

#[cfg(feature = "breaks")]
#[expect(
    clippy::disallowed_methods,
    reason = "only a build for tests reads it, and the tests have no configuration"
)]
fn chosen() -> Result<String, String> {
    std::env::var(VARIABLE)
        .map_err(|_| format!("this build is for tests only: set {VARIABLE} to a break or to {NO_BREAK}"))
}

#[cfg(feature = "breaks")]
fn named(name: &str) -> Option<Break> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, of_rule)| *of_rule)
}
