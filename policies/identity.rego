# Who may have which agent issued an identity.
#
# The question is `input`, the tables are `data.identity`, the answer is `decision`; all three are
# described in docs/guide/policy.md. Edit the tables first: most changes need no change here. Without this
# file no agent has an identity.
#
# Denied unless every rule below has nothing to say against it. A renewal asks again, for what the
# agent was granted and in the name of whoever had it issued.
package svc.identity

import rego.v1

default decision := {"allow": false, "reason": "the policy has no rule for this agent"}

decision := {"allow": true, "reason": "granted", "grants": grants} if count(problems) == 0

decision := {"allow": false, "reason": concat("; ", sort(problems))} if count(problems) > 0

# --- who asks --------------------------------------------------------------------------------

# The caller's own row, by its whole identifier. Nobody asks only in development mode.
row := data.identity.callers[input.caller]

row := data.identity.nobody if not input.caller

problems contains "no row of the policy covers the caller" if not row

# --- for what --------------------------------------------------------------------------------

problems contains "the caller may not have agents of this platform" if {
	row
	not input.request.platform in row.platforms
}

problems contains "the caller may not give its agents any of these capabilities" if {
	row
	count(capabilities) == 0
}

# --- with which grants -----------------------------------------------------------------------

# The most that is granted; what the request and the parent state narrows it further.
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
