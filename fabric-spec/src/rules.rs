//! Rules of a fabric that its schema cannot state, in CEL (`x-kubernetes-validations`).
//!
//! They need the object alone. The chart states those of the certificates again, because Helm has no CEL.

/// A rule at a path of the schema of the custom resource.
pub(crate) struct Rule {
    /// JSON pointer below `openAPIV3Schema`.
    pub at: &'static str,
    pub cel: &'static str,
    pub message: &'static str,
}

const SPEC: &str = "/properties/spec";
const PKI: &str = "/properties/spec/properties/pki";
const TRANSMITTER: &str = "/properties/spec/properties/transmitter";
const FEDERATION: &str = "/properties/spec/properties/federation";

pub(crate) const RULES: [Rule; 17] = [
    Rule {
        at: "/properties/spec/properties/replicas",
        cel: "self in [1, 3, 5]",
        message: "replicas must be 1, 3 or 5: an even number survives no more failures than the odd one below it",
    },
    Rule {
        at: "/properties/spec/properties/replicas",
        cel: "self == oldSelf",
        message: "replicas is immutable: add and remove nodes with trust-fabric cluster",
    },
    Rule {
        at: "/properties/spec/properties/issuer",
        cel: "self == oldSelf",
        message: "issuer is immutable: it is iss of every token",
    },
    Rule {
        at: "/properties/spec/properties/trustDomain",
        cel: "self == oldSelf",
        message: "trustDomain is immutable: it is part of every name",
    },
    Rule {
        at: SPEC,
        cel: "self.replicas == 1 || self.pki.mode != 'certManagerCsi' || has(self.pki.peerCA)",
        message: "pki.peerCA must be set for several nodes with certificates of cert-manager",
    },
    Rule {
        at: PKI,
        cel: "self.mode != 'certManagerCsi' || has(self.clientCA)",
        message: "clientCA must be set for mode certManagerCsi",
    },
    Rule {
        at: PKI,
        cel: "(self.mode == 'certManagerCsi') == has(self.issuerRef)",
        message: "issuerRef must be set for mode certManagerCsi, and for no other",
    },
    Rule {
        at: PKI,
        cel: "self.mode == 'certManagerCsi' || !has(self.peerIssuerRef)",
        message: "peerIssuerRef is for mode certManagerCsi only",
    },
    Rule {
        at: PKI,
        cel: "(self.mode == 'spire') == has(self.className)",
        message: "className must be set for mode spire, and for no other",
    },
    Rule {
        at: PKI,
        cel: "(self.mode == 'secrets') == has(self.secretName)",
        message: "secretName must be set for mode secrets, and for no other",
    },
    Rule {
        at: "/properties/spec/properties/issuers/items",
        cel: "[has(self.keysFile), has(self.keysUrl), has(self.discovery) && self.discovery, has(self.bundleFile), \
              has(self.bundleEndpoint)].exists_one(stated, stated)",
        message: "an issuer has exactly one of keysFile, keysUrl, discovery, bundleFile and bundleEndpoint",
    },
    Rule {
        at: "/properties/spec/properties/issuers/items",
        cel: "(has(self.kind) && self.kind == 'spiffe') == (has(self.bundleFile) || has(self.bundleEndpoint))",
        message: "bundleFile and bundleEndpoint are for kind spiffe, the other sources of keys for kind jwt",
    },
    Rule {
        at: "/properties/spec/properties/issuers/items",
        cel: "(has(self.kind) && self.kind == 'spiffe') != has(self.subject)",
        message: "subject must be set for kind jwt, and not for kind spiffe",
    },
    Rule {
        at: "/properties/spec/properties/signals/items",
        cel: "[has(self.keysFile), has(self.keysUrl), has(self.discovery) && self.discovery].exists_one(stated, stated) \
              || (!has(self.keysFile) && !has(self.keysUrl) && has(self.callers) && self.callers.size() > 0)",
        message: "an issuer of signals has exactly one of keysFile, keysUrl and discovery, or callers",
    },
    Rule {
        at: TRANSMITTER,
        cel: "has(self.certificate) == has(self.privateKey)",
        message: "certificate and privateKey are set together",
    },
    Rule {
        at: FEDERATION,
        cel: "has(self.certificate) == has(self.privateKey)",
        message: "certificate and privateKey are set together",
    },
    Rule {
        at: "/properties/spec/properties/federation/properties/peers/items",
        cel: "(has(self.accept) && self.accept) || (has(self.serve) && self.serve)",
        message: "a peer needs accept or serve",
    },
];
