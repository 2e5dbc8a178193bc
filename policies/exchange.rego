# Token exchange: permitted credentials, audiences and grants.
#
# The input is `input`, the tables are `data.exchange`, the output is `decision`; all three are
# described in docs/guide/policy.md. Edit the tables first: most changes need no change here.
#
# Denied if any rule below finds a problem.
package svc.exchange

import rego.v1

default decision := {"allow": false, "reason": "the policy has no rule for this exchange"}

decision := {"allow": true, "reason": "granted", "grants": grants} if {
	count(problems) == 0
	count(audience_problems) == 0
}

decision := {"allow": false, "reason": concat("; ", sort(problems))} if count(problems) > 0

decision := {
	"allow": false,
	"reason": concat("; ", sort(audience_problems)),
	"refusal": "audience",
} if {
	count(problems) == 0
	count(audience_problems) > 0
}

# --- issuers ---------------------------------------------------------------------------------

# An issuer is accepted only for the kinds of credential and the trust domains in its row.
problems contains "the subject's issuer may not speak for it" if not is_spoken_for(input.subject)

problems contains "the actor's issuer may not speak for it" if {
	input.actor
	not is_spoken_for(input.actor)
}

is_spoken_for(party) if {
	issuer := data.exchange.issuers[party.issuer]
	party.kind in issuer.kinds
	party.trust_domain in issuer.trust_domains
}

# --- grants of a workload --------------------------------------------------------------------

# The most specific row decides alone: the workload's own, else its namespace's, else the first
# matching path rule. Rows are never merged.
row(party) := found if {
	found := data.exchange.workloads[party.id]
} else := found if {
	found := namespace_row(party)
} else := path_rows(party)[0]

# Rules are evaluated once per decision, functions once per call.
subject_row := row(input.subject)

actor_row := row(input.actor)

# `<scheme>://<trust domain>/ns/<namespace>/sa/<service account>`: parsed from
# the identifier, so that an exchanged token is treated like the credential it came from.
namespace_row(party) := data.exchange.namespaces[party.trust_domain][namespace] if {
	["ns", namespace, "sa", _] = segments(party)
}

path_rows(party) := [rule |
	some rule in data.exchange.paths
	is_at(rule, party)
]

is_at(rule, party) if {
	rule.trust_domain == party.trust_domain
	is_same_path(rule.path, segments(party))
}

# Whole segments only; `*` stands for exactly one. A prefix of a segment never matches.
is_same_path(pattern, path) if {
	count(pattern) == count(path)
	every place, segment in pattern {
		segment in {"*", path[place]}
	}
}

# ["wimse:", "", "<trust domain>", segment, …] without its first three.
segments(party) := array.slice(parts, 3, count(parts)) if parts := split(party.id, "/")

problems contains "no row of the policy covers the subject" if not subject_row

# --- for which audience ----------------------------------------------------------------------

audience := input.request.audience

audience := subject_row.default_audience if not input.request.audience

audience_problems contains "no audience was asked for and the subject has no default" if not audience

audience_problems contains "the audience is not known to the policy" if {
	audience
	not data.exchange.audiences[audience]
}

audience_problems contains "the subject may not have a token for this audience" if {
	data.exchange.audiences[audience]
	not audience in subject_row.audiences
}

# Powerful tools want a token for one call, not for five minutes of them.
problems contains "this audience needs an execution scope" if {
	data.exchange.audiences[audience].execution_required
	not input.request.execution
}

# --- on whose behalf -------------------------------------------------------------------------

# An actor presents a token of this fabric: only that states a depth which can be spent.
problems contains "the actor's credential is not a token of a fabric" if {
	input.actor
	input.actor.kind != "agent-a2a"
}

problems contains "the actor may not act for this subject" if {
	input.actor
	not may_act
}

# The actor's own row decides alone, else the first rule for paths that fits: agents have names that
# nobody knows beforehand.
actor_rule := data.exchange.actors[input.actor.id]

actor_rule := path_rules[0] if not data.exchange.actors[input.actor.id]

path_rules := [rule |
	some rule in data.exchange.actor_paths
	is_at(rule, input.actor)
]

may_act if input.subject.id in actor_rule.for_workloads

may_act if {
	namespaces := actor_rule.for_namespaces[input.subject.trust_domain]
	["ns", namespace, "sa", _] = segments(input.subject)
	namespace in namespaces
}

may_act if {
	some rule in actor_rule.for_paths
	is_at(rule, input.subject)
}

problems contains "too many actors in the chain" if {
	input.actor
	count(actors) > actor_rule.actors_max
}

actors := {input.actor.id} | {id | some id in input.subject.act} | {id | some id in input.actor.act}

problems contains "no row of the policy covers the actor" if {
	input.actor
	not actor_row
}

# --- with which grants -----------------------------------------------------------------------

# The most that is granted; what the request and the two tokens state narrows it further.
grants := object.union(
	{
		"audience": audience,
		"capabilities": capabilities,
		"scopes": object.get(subject_row, "scopes", []),
		"delegation_depth": delegation_depth,
	},
	blast_radius,
)

# Capabilities that the audience offers, the subject has and, if present, the actor has too.
capabilities contains capability if {
	some capability in data.exchange.audiences[audience].capabilities
	capability in subject_row.capabilities
	is_held_by_the_actor(capability)
}

is_held_by_the_actor(_) if not input.actor

is_held_by_the_actor(capability) if capability in actor_row.capabilities

# With an actor it is the actor's depth that is spent.
delegation_depth := object.get(subject_row, "delegation_depth", 0) if not input.actor

delegation_depth := object.get(actor_row, "delegation_depth", 0) if input.actor

blast_radius := object.filter(subject_row, ["blast_radius"])
