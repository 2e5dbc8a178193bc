# Tests of signals.rego against the rows in data.json. Run them with `trust-fabric policy test`.
package svc.signals_test

import data.svc.signals
import rego.v1

caep := "https://schemas.openid.net/secevent/caep/event-type"

risc := "https://schemas.openid.net/secevent/risc/event-type"

ssf := "https://schemas.openid.net/secevent/ssf/event-type"

idp := "https://idp.example"

none := {"effect": "none"}

watermark := {"effect": "watermark"}

block(family) := {"effect": "block", "family": family}

lift(family) := {"effect": "lift", "family": family}

# A question about these events of one subject.
ask(events) := {
	"set": {
		"iss": idp,
		"jti": "7f3c",
		"iat": 1800000000,
		"aud": ["https://fabric.example"],
		"sub_id": {"format": "email", "email": "someone@idp.example"},
		"events": events,
	},
	"is_signed": true,
}

effect_of(uri, claims) := effect if {
	decision := signals.decision with input as ask({uri: claims})
	decision.allow == true
	effect := decision.effects[uri]
}

denied_because(decision, reason) if {
	decision.allow == false
	contains(decision.reason, reason)
}

# --- the table of the contract, row by row ---------------------------------------------------

# Each: the event type, what it says, what it does.
rows := [
	[concat("/", [caep, "session-revoked"]), {}, watermark],
	[concat("/", [caep, "session-revoked"]), {"initiating_entity": "policy", "reason": "left"}, watermark],
	[concat("/", [caep, "token-claims-change"]), {"claims": {"role": "reader"}}, watermark],
	[concat("/", [caep, "token-claims-change"]), {}, watermark],
	[concat("/", [caep, "assurance-level-change"]), {"change_direction": "decrease"}, watermark],
	[concat("/", [caep, "assurance-level-change"]), {"change_direction": "increase"}, none],
	[
		concat("/", [caep, "assurance-level-change"]),
		{"current_level": "nist-aal1", "previous_level": "nist-aal2"},
		watermark,
	],
	[concat("/", [caep, "assurance-level-change"]), {"current_level": "nist-aal1"}, watermark],
	[concat("/", [risc, "sessions-revoked"]), {}, watermark],
	[concat("/", [risc, "credential-compromise"]), {"credential_type": "password"}, watermark],
	[concat("/", [risc, "account-credential-change-required"]), {}, watermark],
	[concat("/", [caep, "credential-change"]), {"change_type": "revoke"}, watermark],
	[concat("/", [caep, "credential-change"]), {"change_type": "delete"}, watermark],
	[concat("/", [caep, "credential-change"]), {"change_type": "update"}, watermark],
	[concat("/", [caep, "credential-change"]), {"change_type": "create"}, none],
	[
		concat("/", [caep, "device-compliance-change"]),
		{"current_status": "not-compliant", "previous_status": "compliant"},
		block("device-compliance"),
	],
	[
		concat("/", [caep, "device-compliance-change"]),
		{"current_status": "compliant", "previous_status": "not-compliant"},
		lift("device-compliance"),
	],
	[concat("/", [caep, "risk-level-change"]), {"current_level": "HIGH", "principal": "USER"}, block("risk-level")],
	[concat("/", [caep, "risk-level-change"]), {"current_level": "MEDIUM", "principal": "USER"}, none],
	[concat("/", [caep, "risk-level-change"]), {"current_level": "LOW", "principal": "USER"}, lift("risk-level")],
	[concat("/", [risc, "account-disabled"]), {"reason": "hijacking"}, block("account")],
	[concat("/", [risc, "account-purged"]), {}, block("account")],
	[concat("/", [risc, "account-enabled"]), {}, lift("account")],
	[concat("/", [caep, "session-established"]), {"acr": "AAL2"}, none],
	[concat("/", [caep, "session-presented"]), {"ext_id": "12345"}, none],
	[concat("/", [ssf, "verification"]), {"state": "x"}, none],
	[concat("/", [ssf, "stream-updated"]), {"status": "paused"}, none],
	[concat("/", [risc, "identifier-changed"]), {"new-value": "other@idp.example"}, none],
	[concat("/", [risc, "opt-in"]), {}, none],
	["urn:example:unknown", {"change_type": "revoke"}, none],
]

test_every_event_has_the_effect_of_the_table if {
	every row in rows {
		effect_of(row[0], row[1]) == row[2]
	}
}

test_all_events_of_one_token_have_their_own_effects if {
	events := {row[0]: row[1] | some row in rows; row[2] == watermark; count(row[1]) == 0}
	count(events) == 4
	decision := signals.decision with input as ask(object.union(events, {"urn:example:unknown": {}}))
	decision.effects == object.union({uri: watermark | some uri, _ in events}, {"urn:example:unknown": none})
}

test_another_spelling_of_an_event_type_has_no_effect if {
	every uri in {
		"https://schemas.openid.net/secevent/caep/event-type/session-revoke",
		"https://schemas.openid.net/secevent/caep/event-type/session-revoked/",
		"https://schemas.openid.net/secevent/caep/event-type/Session-Revoked",
		"http://schemas.openid.net/secevent/caep/event-type/session-revoked",
		"https://schemas.openid.net/secevent/risc/event-type/session-revoked",
		"https://schemas.openid.net/secevent/caep/event-type/",
	} {
		effect_of(uri, {}) == none
	}
}

# --- events without the fields of the table ---------------------------------------------------

test_denies_an_event_that_lacks_what_decides_and_names_it if {
	lacking := {
		"credential-change": "change_type",
		"device-compliance-change": "current_status",
		"risk-level-change": "current_level",
	}
	every name, member in lacking {
		uri := concat("/", [caep, name])
		reason := concat(" lacks ", [uri, member])
		decision := signals.decision with input as ask({uri: {"principal": "USER", "previous_level": "LOW"}})
		denied_because(decision, reason)
	}
}

test_denies_a_value_that_the_table_does_not_have_and_names_its_member if {
	wrong := {
		"credential-change": "change_type",
		"assurance-level-change": "change_direction",
		"device-compliance-change": "current_status",
		"risk-level-change": "current_level",
	}
	every name, member in wrong {
		uri := concat("/", [caep, name])
		every value in ["", "Revoke", "high", "none", 1, null, false, true, ["revoke"], {"revoke": 1}] {
			decision := signals.decision with input as ask({uri: {member: value}})
			denied_because(decision, concat(" has a ", [uri, member]))
		}
	}
}

test_one_bad_event_denies_the_token if {
	events := {concat("/", [caep, "session-revoked"]): {}, concat("/", [caep, "credential-change"]): {}}
	decision := signals.decision with input as ask(events)
	denied_because(decision, "lacks change_type")
	not decision.effects
}

# --- issuers ---------------------------------------------------------------------------------

test_an_issuer_with_a_row_sends_only_what_the_row_lists if {
	revoked := concat("/", [caep, "session-revoked"])
	issuers := {idp: {"events": [revoked]}, "https://idp.example/other": {"events": []}}
	allowed := signals.decision with input as ask({revoked: {}}) with data.signals.issuers as issuers
	allowed.effects == {revoked: watermark}
	other := signals.decision with input as ask({revoked: {}, "urn:example:unknown": {}})
		with data.signals.issuers as issuers
	denied_because(other, "the issuer may not send urn:example:unknown")
}

test_denies_an_issuer_whose_row_lists_nothing if {
	every row in [{"events": []}, {}, "all", {"events": null}] {
		decision := signals.decision with input as ask({concat("/", [caep, "session-revoked"]): {}})
			with data.signals.issuers as {idp: row}
		denied_because(decision, "the issuer may not send")
	}
}

test_denies_everything_without_its_tables if {
	question := ask({concat("/", [caep, "session-revoked"]): {}})
	nothing := signals.decision with input as question with data.signals as {}
	denied_because(nothing, "no table of effects")
	denied_because(nothing, "no table of issuers")
	effects := signals.decision with input as question with data.signals as {"issuers": {}}
	denied_because(effects, "no table of effects")
}

test_denies_a_question_without_events if {
	empty := signals.decision with input as {}
	denied_because(empty, "no event")
	none_asked := signals.decision with input as ask({})
	denied_because(none_asked, "no event")
}
