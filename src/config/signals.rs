//! `[[signals]]`: issuers of signals, the source of their keys, and their authority.

use std::collections::BTreeSet;

use super::checker::Checker;
use super::schema;
use super::schema::{Mode, Settings};
use super::{issuers, listeners};
use crate::id::{TrustDomain, WorkloadId};
use crate::limits;
use crate::outbound::guard::Guard;
use crate::receiver::{Authority, SignalIssuer};
use crate::token::issuer::KeySource;

/// Checks each issuer alone; [`SignalIssuers`] checks all of them together, if none has a mistake.
pub(super) fn check(
    settings: &Settings,
    own_issuer: Option<&str>,
    guard: &Guard,
    checker: &mut Checker,
) -> Vec<SignalIssuer> {
    let mut checked = Vec::new();
    for (index, section) in settings.signals.iter().enumerate() {
        let name = format!("signals[{index}]");
        let section = Section { all: settings, settings: section, name, own_issuer, guard };
        checked.extend(section.check(checker));
    }
    checked
}

struct Section<'k> {
    all: &'k Settings,
    settings: &'k schema::SignalIssuer,
    name: String,
    own_issuer: Option<&'k str>,
    guard: &'k Guard,
}

impl Section<'_> {
    fn setting(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    fn check(&self, checker: &mut Checker) -> Option<SignalIssuer> {
        let iss = checker.require(&self.setting("issuer"), self.settings.issuer.as_deref());
        let iss = iss.and_then(|iss| checker.keep(&self.setting("issuer"), self.foreign(iss)));
        let (setting, keys) = self.key_source();
        let keys = checker.keep(&setting, keys);
        let algorithms =
            checker.keep(&self.setting("algorithms"), issuers::algorithms(&self.settings.algorithms));
        let audiences = issuers::audiences(self.settings.audiences.as_deref(), self.own_issuer);
        let audiences = checker.keep(&self.setting("audiences"), audiences);
        let callers = checker.keep(&self.setting("callers"), self.callers());
        let trust_domains = checker
            .keep(&self.setting("trust_domains"), issuers::trust_domains(&self.settings.trust_domains));
        let subject_issuers = checker.keep(&self.setting("subject_issuers"), self.subject_issuers());
        let reach = self.reach(trust_domains.as_deref(), subject_issuers.as_deref());
        checker.keep(&self.setting("subject_issuers"), reach)?;
        let quota = checker.keep(&self.setting("revocations_per_minute"), self.revocations_per_minute());
        Some(SignalIssuer {
            iss: iss?,
            keys: keys?,
            algorithms: algorithms?,
            audiences: audiences?,
            callers: callers?,
            authority: Authority { trust_domains: trust_domains?, subject_issuers: subject_issuers? },
            revocations_per_minute: quota?,
            may_block_operators: self.settings.may_block_operators,
        })
    }

    fn foreign(&self, iss: &str) -> Result<String, &'static str> {
        if iss.is_empty() || iss.len() > limits::URI_BYTES_MAX {
            Err("must be the iss of the signals, byte for byte")
        } else if self.own_issuer == Some(iss) {
            Err("is this fabric's own issuer, which cannot send signals to itself")
        } else {
            Ok(iss.to_owned())
        }
    }

    /// At most one of three settings, and the setting of the outcome. Without keys, no signed event is accepted; then a
    /// caller must be able to send unsigned ones.
    fn key_source(&self) -> (String, Result<Option<KeySource>, String>) {
        let settings = self.settings;
        let fetchable = |address: &str| issuers::fetchable(address, self.guard);
        let mut sources: Vec<(&str, Result<KeySource, String>)> = Vec::new();
        sources
            .extend(settings.keys_file.iter().map(|path| ("keys_file", Ok(KeySource::File(path.clone())))));
        sources.extend(settings.keys_url.iter().map(|url| ("keys_url", fetchable(url).map(KeySource::Url))));
        if settings.discovery {
            // A missing issuer is a mistake of its own.
            let address = settings.issuer.as_deref().map_or(Ok(String::new()), fetchable);
            sources.push(("discovery", address.map(|_| KeySource::TransmitterMetadata)));
        }
        let of_section = |outcome: Result<_, &str>| (self.name.clone(), outcome.map_err(str::to_owned));
        let mut sources = sources.into_iter();
        match (sources.next(), sources.next()) {
            (None, _) if settings.callers.is_empty() && self.all.node.mode == Mode::Production => {
                of_section(Err(
                    "needs keys_file, keys_url, discovery = true or callers: otherwise it cannot send signals",
                ))
            }
            (None, _) => of_section(Ok(None)),
            (Some((name, source)), None) => (self.setting(name), source.map(Some)),
            (Some(_), Some(_)) => {
                of_section(Err("takes at most one of keys_file, keys_url, discovery = true"))
            }
        }
    }

    fn callers(&self) -> Result<BTreeSet<WorkloadId>, String> {
        let read = |id: &String| listeners::spiffe_id(id).map_err(|rule| format!("{id:?}: {rule}"));
        self.settings.callers.iter().map(read).collect()
    }

    /// Default: its own subjects. A stated issuer must be configured: a misspelled name would silently revoke nothing.
    fn subject_issuers(&self) -> Result<Vec<String>, String> {
        let Some(stated) = &self.settings.subject_issuers else {
            return Ok(self.settings.issuer.iter().cloned().collect());
        };
        if stated.len() > limits::SUBJECT_ISSUERS_MAX {
            return Err(format!("must name at most {}", limits::SUBJECT_ISSUERS_MAX));
        }
        let is_known = |iss: &str| {
            let mut configured = self.all.issuers.iter().filter_map(|issuer| issuer.issuer.as_deref());
            [self.own_issuer, self.settings.issuer.as_deref()].contains(&Some(iss))
                || configured.any(|configured| configured == iss)
        };
        match stated.iter().find(|iss| !is_known(iss)) {
            Some(unknown) => {
                let rule = "must be its own issuer, that of one of [[issuers]], or fabric.issuer";
                Err(format!("{unknown:?}: {rule}"))
            }
            None => Ok(stated.clone()),
        }
    }

    /// Refuses an issuer that can revoke nothing because none of its subjects' credentials are accepted: its signals would
    /// all be ignored.
    fn reach(
        &self,
        trust_domains: Option<&[TrustDomain]>,
        subject_issuers: Option<&[String]>,
    ) -> Result<(), &'static str> {
        let (Some(trust_domains), Some(subject_issuers)) = (trust_domains, subject_issuers) else {
            return Ok(());
        };
        let is_heard = |iss: &str| {
            let mut configured = self.all.issuers.iter().filter_map(|issuer| issuer.issuer.as_deref());
            self.own_issuer == Some(iss) || configured.any(|configured| configured == iss)
        };
        let own_name = self.settings.issuer.as_deref();
        if trust_domains.is_empty()
            && !subject_issuers.iter().map(String::as_str).chain(own_name).any(is_heard)
        {
            Err("has no subject whose credentials are accepted: needs one of [[issuers]], or trust_domains")
        } else {
            Ok(())
        }
    }

    fn revocations_per_minute(&self) -> Result<u32, String> {
        let largest = limits::REVOCATIONS_PER_MINUTE_MAX;
        let stated = u32::try_from(self.settings.revocations_per_minute).unwrap_or(u32::MAX);
        if (1..=largest).contains(&stated) { Ok(stated) } else { Err(format!("must be 1 to {largest}")) }
    }
}
