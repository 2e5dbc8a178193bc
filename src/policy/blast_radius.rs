//! Blast radius: the reach of a token as `<kind>[:<name>]`, and containment of one in another (contract §3 "Blast
//! radius"). Pure values: no policy is evaluated here.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::{id, limits};

/// Refusal of a blast radius or a containment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not `<kind>[:<name>]`.
    #[error("blast radius must be <kind> or <kind>:<name>, kind of a-z, 0-9, '-', name of path segments")]
    Syntax,
    /// Longer than [`limits::BLAST_RADIUS_BYTES_MAX`].
    #[error("blast radius is longer than {} bytes", limits::BLAST_RADIUS_BYTES_MAX)]
    TooLong,
    /// The order is empty, too long, or names a kind twice or a malformed one.
    #[error("order of blast radii must name 1 to {} different kinds", limits::BLAST_RADIUS_KINDS_MAX)]
    Order,
    /// More entries than [`limits::BLAST_RADIUS_PARENTS_MAX`].
    #[error("parent map of blast radii has more than {} entries", limits::BLAST_RADIUS_PARENTS_MAX)]
    TooManyParents,
    /// A parent must have a name and a larger kind than its child.
    #[error("{child} cannot lie within {parent}: both need a name, and the parent a larger kind")]
    Parent {
        /// Key of the entry.
        child: BlastRadius,
        /// Value of the entry.
        parent: BlastRadius,
    },
}

/// Two blast radii, neither of which is known to lie within the other (contract §3: 403).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("blast radius {0} and {1} are not comparable")]
pub struct Incomparable(pub BlastRadius, pub BlastRadius);

/// A kind, and the name of one thing of that kind; without a name: any thing of that kind.
///
/// Names are paths of whole segments, for example `workspace:pay/ledger`, compared byte for byte: `namespace:pay` has
/// nothing in common with `namespace:payroll`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlastRadius {
    kind: String,
    name: Option<String>,
}

impl BlastRadius {
    /// The part before the colon, for example `namespace`.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The part after the colon; `None`: any thing of that kind.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

impl FromStr for BlastRadius {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > limits::BLAST_RADIUS_BYTES_MAX {
            return Err(Error::TooLong);
        }
        let (kind, name) = match text.split_once(':') {
            Some((kind, name)) => (kind, Some(name)),
            None => (text, None),
        };
        let well_formed = is_kind(kind) && name.is_none_or(|name| name.split('/').all(id::is_path_segment));
        if !well_formed {
            return Err(Error::Syntax);
        }
        Ok(Self { kind: kind.to_owned(), name: name.map(str::to_owned) })
    }
}

impl fmt::Display for BlastRadius {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{}:{name}", self.kind),
            None => f.write_str(&self.kind),
        }
    }
}

/// The known containments.
#[derive(Clone, Debug)]
pub struct Containment {
    /// Kinds from the smallest to the largest.
    order: Vec<String>,
    /// From a named thing to the named thing of a larger kind that contains it.
    parents: BTreeMap<BlastRadius, BlastRadius>,
}

impl Default for Containment {
    /// `workspace` < `namespace` < `cluster` < `global`, and no parents (contract §3).
    fn default() -> Self {
        let order = ["workspace", "namespace", "cluster", "global"].map(str::to_owned).to_vec();
        Self { order, parents: BTreeMap::new() }
    }
}

impl Containment {
    /// From kinds in order, smallest first, and a map from child to parent.
    ///
    /// # Errors
    /// [`Error::Order`], [`Error::TooManyParents`], [`Error::Parent`].
    pub fn new(order: Vec<String>, parents: BTreeMap<BlastRadius, BlastRadius>) -> Result<Self, Error> {
        let distinct = order.iter().enumerate().all(|(at, kind)| !order.iter().take(at).any(|k| k == kind));
        if order.is_empty()
            || order.len() > limits::BLAST_RADIUS_KINDS_MAX
            || !distinct
            || !order.iter().all(|kind| is_kind(kind))
        {
            return Err(Error::Order);
        }
        if parents.len() > limits::BLAST_RADIUS_PARENTS_MAX {
            return Err(Error::TooManyParents);
        }
        let containment = Self { order, parents };
        for (child, parent) in &containment.parents {
            let named = child.name.is_some() && parent.name.is_some();
            if !named || !containment.is_smaller_kind(child, parent) {
                return Err(Error::Parent { child: child.clone(), parent: parent.clone() });
            }
        }
        Ok(containment)
    }

    /// Whether `value` is known to lie within `limit`.
    #[must_use]
    pub fn fits(&self, value: &BlastRadius, limit: &BlastRadius) -> bool {
        // "Fits when same kind and (same name or the limit is bare), …
        let (Some(value_rank), Some(limit_rank)) = (self.rank(value), self.rank(limit)) else {
            return false; // … unknown kind: does not fit."
        };
        if value_rank == limit_rank {
            return limit.name.is_none() || limit.name == value.name;
        }
        // "… or smaller kind and containment is known"; a bare limit is any thing of its kind.
        value_rank < limit_rank && (limit.name.is_none() || self.lies_within(value, limit))
    }

    /// The smaller of two blast radii, which fits both.
    ///
    /// # Errors
    /// [`Incomparable`] if neither fits the other.
    pub fn smaller(&self, a: &BlastRadius, b: &BlastRadius) -> Result<BlastRadius, Incomparable> {
        if self.fits(a, b) {
            Ok(a.clone())
        } else if self.fits(b, a) {
            Ok(b.clone())
        } else {
            Err(Incomparable(a.clone(), b.clone()))
        }
    }

    /// By path, or through the parent map. Terminates because every parent has a larger kind.
    fn lies_within(&self, value: &BlastRadius, limit: &BlastRadius) -> bool {
        if value == limit || (self.is_smaller_kind(value, limit) && is_path_within(value, limit)) {
            return true;
        }
        if !self.is_smaller_kind(value, limit) {
            return false;
        }
        // A thing whose path lies within a child lies within the parent of that child.
        self.ancestors(value).any(|parent| self.lies_within(parent, limit))
    }

    /// Parents of `value` and of the things of larger kinds that its path names.
    fn ancestors<'a>(&'a self, value: &'a BlastRadius) -> impl Iterator<Item = &'a BlastRadius> {
        let rank = self.rank(value).unwrap_or(usize::MAX);
        let own = self.parents.get(value);
        let paths =
            value.name.iter().flat_map(|name| name.match_indices('/').map(|(at, _)| name.split_at(at).0));
        let by_path = paths.flat_map(move |name| {
            self.order.iter().skip(rank.saturating_add(1)).filter_map(move |kind| {
                self.parents.get(&BlastRadius { kind: kind.clone(), name: Some(name.to_owned()) })
            })
        });
        own.into_iter().chain(by_path)
    }

    fn is_smaller_kind(&self, a: &BlastRadius, b: &BlastRadius) -> bool {
        matches!((self.rank(a), self.rank(b)), (Some(a), Some(b)) if a < b)
    }

    fn rank(&self, radius: &BlastRadius) -> Option<usize> {
        self.order.iter().position(|kind| *kind == radius.kind)
    }
}

/// Whether the limit's name is a path above the value's, by whole segments.
fn is_path_within(value: &BlastRadius, limit: &BlastRadius) -> bool {
    match (&value.name, &limit.name) {
        (Some(value), Some(limit)) => {
            value.strip_prefix(limit.as_str()).is_some_and(|rest| rest.starts_with('/'))
        }
        _ => false,
    }
}

fn is_kind(text: &str) -> bool {
    text.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn radius(text: &str) -> BlastRadius {
        text.parse().expect("well formed")
    }

    fn fits(value: &str, limit: &str) -> bool {
        Containment::default().fits(&radius(value), &radius(limit))
    }

    fn with_parents(parents: &[(&str, &str)]) -> Containment {
        let parents = parents.iter().map(|(child, parent)| (radius(child), radius(parent))).collect();
        Containment::new(Containment::default().order, parents).expect("children below their parents")
    }

    #[test]
    fn malformed_blast_radius_is_refused() {
        for text in
            ["", ":", "namespace:", ":pay", "Namespace:pay", "namespace:a//b", "namespace:/a", "namespace:a/"]
        {
            assert_eq!(text.parse::<BlastRadius>(), Err(Error::Syntax), "{text}");
        }
        for text in ["namespace:..", "namespace:a/./b", "namespace:a b", "namespace:a:b", "9a", "n\u{e4}:a"] {
            assert_eq!(text.parse::<BlastRadius>(), Err(Error::Syntax), "{text}");
        }
        let long = format!("namespace:{}", "a".repeat(limits::BLAST_RADIUS_BYTES_MAX));
        assert_eq!(long.parse::<BlastRadius>(), Err(Error::TooLong));
    }

    #[test]
    fn name_fits_itself_and_its_bare_kind_only() {
        assert!(fits("namespace:pay", "namespace:pay"));
        assert!(fits("namespace:pay", "namespace"));
        assert!(!fits("namespace", "namespace:pay"));
        assert!(!fits("namespace:pay", "namespace:payroll"));
        assert!(!fits("namespace:payroll", "namespace:pay"));
        assert!(!fits("namespace:pay/a", "namespace:pay"));
    }

    #[test]
    fn smaller_kind_fits_by_whole_path_segments() {
        assert!(fits("workspace:pay/ledger", "namespace:pay"));
        assert!(!fits("workspace:payroll/ledger", "namespace:pay"));
        assert!(!fits("workspace:pay", "namespace:pay"));
        assert!(!fits("namespace:pay", "workspace:pay/ledger"));
        assert!(fits("workspace:pay/ledger", "global"));
        assert!(fits("namespace", "cluster"));
        assert!(!fits("namespace", "cluster:eu"));
        assert!(!fits("cluster", "namespace"));
    }

    #[test]
    fn unknown_kind_does_not_fit_even_itself() {
        assert!(!fits("galaxy:x", "galaxy:x"));
        assert!(!fits("galaxy:x", "global"));
        assert!(!fits("workspace:x", "galaxy"));
    }

    #[test]
    fn parent_map_is_transitive() {
        let map = with_parents(&[("namespace:pay", "cluster:eu-1"), ("cluster:eu-1", "global:one")]);
        assert!(map.fits(&radius("namespace:pay"), &radius("cluster:eu-1")));
        assert!(map.fits(&radius("namespace:pay"), &radius("global:one")));
        assert!(map.fits(&radius("workspace:pay/ledger"), &radius("cluster:eu-1")));
        assert!(map.fits(&radius("workspace:pay/ledger/x"), &radius("global:one")));
        assert!(!map.fits(&radius("workspace:payroll/ledger"), &radius("cluster:eu-1")));
        assert!(!map.fits(&radius("namespace:other"), &radius("cluster:eu-1")));
    }

    #[test]
    fn parent_not_larger_or_without_name_is_refused() {
        for (child, parent) in [
            ("cluster:a", "namespace:b"),
            ("namespace:a", "namespace:b"),
            ("namespace", "cluster:a"),
            ("namespace:a", "cluster"),
            ("galaxy:a", "global:b"),
        ] {
            let parents = BTreeMap::from([(radius(child), radius(parent))]);
            let refused = Containment::new(Containment::default().order, parents);
            assert!(matches!(refused, Err(Error::Parent { .. })), "{child} in {parent}");
        }
    }

    #[test]
    fn order_with_a_repeated_kind_is_refused() {
        for order in [vec![], vec!["a", "b", "a"], vec!["A"]] {
            let order = order.into_iter().map(str::to_owned).collect();
            assert!(matches!(Containment::new(order, BTreeMap::new()), Err(Error::Order)));
        }
    }

    #[test]
    fn smaller_of_incomparable_is_refused() {
        let (a, b) = (radius("namespace:pay"), radius("namespace:payroll"));
        assert_eq!(Containment::default().smaller(&a, &b), Err(Incomparable(a, b)));
    }

    fn any_radius() -> impl Strategy<Value = BlastRadius> {
        let kind = prop::sample::select(vec!["workspace", "namespace", "cluster", "global", "galaxy"]);
        let name = prop::collection::vec(prop::sample::select(vec!["pay", "payroll", "a"]), 0..4);
        (kind, name).prop_map(|(kind, name)| {
            let name = name.join("/");
            radius(&if name.is_empty() { kind.to_owned() } else { format!("{kind}:{name}") })
        })
    }

    fn any_containment() -> impl Strategy<Value = Containment> {
        prop::collection::vec((any_radius(), any_radius()), 0..6).prop_map(|pairs| {
            let plain = Containment::default();
            let parents = pairs
                .into_iter()
                .filter(|(child, parent)| {
                    child.name.is_some() && parent.name.is_some() && plain.is_smaller_kind(child, parent)
                })
                .collect();
            Containment::new(plain.order, parents).expect("filtered")
        })
    }

    proptest! {
        #[test]
        fn fits_is_transitive(map in any_containment(), a in any_radius(), b in any_radius(), c in any_radius()) {
            if map.fits(&a, &b) && map.fits(&b, &c) {
                prop_assert!(map.fits(&a, &c), "{a} in {b} in {c}");
            }
        }

        #[test]
        fn smaller_is_never_wider_than_either(map in any_containment(), a in any_radius(), b in any_radius()) {
            if let Ok(smaller) = map.smaller(&a, &b) {
                prop_assert!(map.fits(&smaller, &a) && map.fits(&smaller, &b));
            }
        }

        #[test]
        fn radii_that_fit_each_other_are_equal(map in any_containment(), a in any_radius(), b in any_radius()) {
            if map.fits(&a, &b) && map.fits(&b, &a) {
                prop_assert_eq!(a, b);
            }
        }

        #[test]
        fn text_survives(a in any_radius()) {
            prop_assert_eq!(radius(&a.to_string()), a);
        }
    }

    #[test]
    fn order_and_parent_map_are_limited() {
        let order = |kinds: usize| (0..kinds).map(|at| format!("k{}", "x".repeat(at))).collect::<Vec<_>>();
        assert!(Containment::new(order(limits::BLAST_RADIUS_KINDS_MAX), BTreeMap::new()).is_ok());
        let refused = Containment::new(order(limits::BLAST_RADIUS_KINDS_MAX + 1), BTreeMap::new());
        assert_eq!(refused.err(), Some(Error::Order));
        let parents = |entries: usize| {
            let children = (0..entries).map(|at| radius(&format!("namespace:n{at}")));
            children.map(|child| (child, radius("cluster:c"))).collect::<BTreeMap<_, _>>()
        };
        let kinds = || vec!["namespace".to_owned(), "cluster".to_owned()];
        assert!(Containment::new(kinds(), parents(limits::BLAST_RADIUS_PARENTS_MAX)).is_ok());
        let refused = Containment::new(kinds(), parents(limits::BLAST_RADIUS_PARENTS_MAX + 1));
        assert_eq!(refused.err(), Some(Error::TooManyParents));
    }
}
