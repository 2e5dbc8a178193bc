# Security event tokens: permitted events and their effects.
#
# The input is `input`, the tables are `data.signals`, the output is `decision`; all three are
# described in docs/guide/policy.md. Edit the tables first: most changes need no change here. Without this
# file no signal is accepted.
#
# Denied if any rule below finds a problem. The authority of the issuer over the subject is not decided
# here: the configuration bounds it, whatever the output.
package svc.signals

import rego.v1

default decision := {"allow": false, "reason": "the policy has no rule for this signal"}

decision := {"allow": true, "reason": "accepted", "effects": effects} if count(problems) == 0

decision := {"allow": false, "reason": concat("; ", sort(problems))} if count(problems) > 0

# --- issuers ---------------------------------------------------------------------------------

# An issuer with a row may send what its row lists; one without may send everything.
problems contains sprintf("the issuer may not send %s", [uri]) if {
	row := data.signals.issuers[input.set.iss]
	some uri, _ in input.set.events
	not uri in row.events
}

problems contains "the token has no event" if not asks

asks if count(input.set.events) > 0

# Without its tables nothing would be denied, and no event would have an effect.
problems contains "the policy has no table of issuers" if not is_object(data.signals.issuers)

problems contains "the policy has no table of effects" if not is_object(data.signals.effects)

# --- effects ---------------------------------------------------------------------------------

effects := {uri: effect |
	some uri, claims in input.set.events
	effect := effect_of(uri, claims)
}

# An event without a row is recorded and has no effect.
effect_of(uri, _) := {"effect": "none"} if not data.signals.effects[uri]

effect_of(uri, _) := data.signals.effects[uri] if data.signals.effects[uri].effect

effect_of(uri, claims) := row.values[claims[row.member]] if row := data.signals.effects[uri]

effect_of(uri, claims) := row.absent if {
	row := data.signals.effects[uri]
	not has(claims, row.member)
}

problems contains sprintf("%s lacks %s", [uri, row.member]) if {
	some uri, claims in input.set.events
	row := data.signals.effects[uri]
	row.member
	not row.absent
	not has(claims, row.member)
}

problems contains sprintf("%s has a %s that means nothing here", [uri, row.member]) if {
	some uri, claims in input.set.events
	row := data.signals.effects[uri]
	has(claims, row.member)
	not row.values[claims[row.member]]
}

# Also if its value is false or null.
has(claims, member) if {
	some name, _ in claims
	name == member
}
