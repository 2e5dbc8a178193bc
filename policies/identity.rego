# Agent identities: permitted callers and grants.
#
# The input is `input`, the tables are `data.identity`, the output is `decision`; all three are
# described in docs/guide/policy.md. Edit the tables first: most changes need no change here. Without this
# file no agent has an identity.
#
# Denied if any rule below finds a problem. A renewal is decided again, for the grants of the agent and
# in the name of the caller that issued it.
package svc.identity

import rego.v1

default decision := {"allow": false, "reason": "the policy has no rule for this agent"}

decision := {"allow": true, "reason": "granted", "grants": grants} if count(problems) == 0

decision := {"allow": false, "reason": concat("; ", sort(problems))} if count(problems) > 0

# --- callers ---------------------------------------------------------------------------------

# The caller's own row, by its whole identifier. Only development mode has requests without a caller.
row := data.identity.callers[input.caller]

row := data.identity.nobody if not input.caller

problems contains "no row of the policy covers the caller" if not row

# --- agents ----------------------------------------------------------------------------------

problems contains "the caller may not have agents of this platform" if {
	row
	not input.request.platform in row.platforms
}

problems contains "the caller may not give its agents any of these capabilities" if {
	row
	count(capabilities) == 0
}

# --- grants ----------------------------------------------------------------------------------

# The maximum grant; the request and the parent narrow it further.
grants := object.union(
	{
		"capabilities": capabilities,
		"delegation_depth": object.get(row, "delegation_depth", 0),
	},
	object.filter(row, ["blast_radius"]),
)

capabilities contains capability if {
	some capability in input.request.capabilities
	capability in row.capabilities
}
