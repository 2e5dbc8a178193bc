//! Identity of a state: its cluster, incarnation, feature level and log time.

use super::index::{read_incarnation, read_time};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::id::Incarnation;
use crate::state::resources::feature_levels;
use crate::state::tables::{CLUSTER_ID, FEATURE_LEVEL, INCARNATION, META, TIME};

/// Cluster, incarnation, feature level and log time of a state.
#[derive(Clone, Copy, Debug)]
pub struct StateIdentity {
    pub cluster_id: Incarnation,
    pub incarnation: Incarnation,
    pub feature_level: u32,
    /// Log time.
    pub time: Timestamp,
}

impl StateIdentity {
    /// Reads the rows; `None` before the cluster is bootstrapped.
    ///
    /// # Errors
    /// If a row is corrupt.
    pub fn read(view: &dyn View) -> Result<Option<Self>, Corrupt> {
        let row = |key| view.get(META, key);
        let (Some(cluster_id), Some(incarnation), Some(time)) =
            (row(CLUSTER_ID)?, row(INCARNATION)?, row(TIME)?)
        else {
            return Ok(None);
        };
        let [cluster_id, incarnation] = [read_incarnation(&cluster_id)?, read_incarnation(&incarnation)?];
        let feature_level = row(FEATURE_LEVEL)?.map_or(Ok(0), |row| feature_levels::from_row(&row))?;
        Ok(Some(Self { cluster_id, incarnation, feature_level, time: read_time(&time)? }))
    }
}
