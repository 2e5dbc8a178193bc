//! Every short order of events of two fabrics, one token of the origin fabric and one that was minted from it.

use super::logs::{is_incarnation_read, judge_by_logs, must_be_refused};
use super::tables::{Tables, judge_by_tables};
use super::{Change, Command, Fact, Ledger, OriginEvent, Position, Response, Rule, Rules, Token, Verdict};
use stateright::{Model, Property};

/// The fact that the lineage of the tokens names.
const NAMED: Fact = 0;

/// Two fabrics, with all rules or without one.
#[derive(Clone, Copy, Debug)]
pub struct Orders {
    pub rules: Rules,
    /// Events of the origin fabric.
    pub events_max: usize,
    /// Commands of the relying fabric.
    pub commands_max: usize,
}

/// State of the model: both logs, and the credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    events: Vec<OriginEvent>,
    commands: Vec<Command>,
    /// A response that is late.
    late: Option<Response>,
    token: Option<Token>,
    minted: Option<Token>,
}

/// Possible steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// An event of the origin fabric.
    Origin(OriginEvent),
    /// The origin fabric issues a token to the holder of a credential obtained now.
    Issue,
    /// A thief of its key issues a token with a high index.
    Forge,
    /// The origin fabric answers, and the relying fabric applies the response.
    Sync,
    /// The origin fabric answers, and the response is late.
    Answer,
    /// The late response is applied.
    Deliver,
    /// The relying fabric forgets an entry of the peer.
    Forget,
    /// The relying fabric deletes the peer.
    ForgetPeer,
    /// A node of the relying fabric that has applied so many commands mints a token from the other one.
    Mint(usize),
}

impl Orders {
    fn ledger(self, world: &World) -> Ledger {
        Ledger::after(self.rules, &world.events)
    }

    fn tables(self, world: &World) -> Tables {
        Tables::after(self.rules, &world.commands)
    }

    fn answer(self, world: &World) -> Response {
        self.ledger(world).answer(self.tables(world).request(), world.events.len())
    }

    fn verdict(self, world: &World, token: &Token) -> Verdict {
        judge_by_tables(self.rules, &self.tables(world), token)
    }

    /// A token is minted by a node that may lag, from a credential that it judges.
    fn mint(self, world: &World, applied: usize) -> Option<Token> {
        let token = world.token?;
        let tables = Tables::after(self.rules, &world.commands[..applied]);
        let is_clear = judge_by_tables(self.rules, &tables, &token) == Verdict::Clear;
        let at = if self.rules.keeps(Rule::IndexIsReadFirst) { tables.at() } else { self.tables(world).at() };
        is_clear.then_some(Token { is_ours: true, is_through: true, at, ..token })
    }

    fn issue(self, world: &World, is_forged: bool) -> Token {
        let ledger = self.ledger(world);
        let index = if is_forged { ledger.index + 9 } else { ledger.index };
        Token {
            is_ours: false,
            is_through: false,
            at: Position { incarnation: ledger.incarnation, index },
            lineage: 1 << NAMED,
            // The thief is not bound by the order of the log: nothing but the taint covers this token.
            root: (ledger.incarnation, if is_forged { usize::MAX } else { world.events.len() }),
        }
    }

    fn any_token(world: &World, is_wrong: impl Fn(&Token) -> bool) -> bool {
        world.token.iter().chain(&world.minted).any(is_wrong)
    }
}

impl Model for Orders {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World { events: Vec::new(), commands: Vec::new(), late: None, token: None, minted: None }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let ledger = self.ledger(world);
        if world.events.len() < self.events_max {
            let block = if ledger.blocks(NAMED) { Change::Lift(NAMED) } else { Change::Block(NAMED) };
            let changes = [Change::Revoke(NAMED), Change::Taint(NAMED), block];
            steps.extend(changes.map(|change| Step::Origin(OriginEvent::Entry(change))));
            if ledger.can_forget() {
                steps.push(Step::Origin(OriginEvent::Forget));
            }
            steps.extend((0..=ledger.index).map(|index| Step::Origin(OriginEvent::Restore(index))));
        }
        if world.token.is_none() {
            if ledger.issues(1 << NAMED) {
                steps.push(Step::Issue);
            }
            steps.push(Step::Forge);
        }
        if world.commands.len() < self.commands_max {
            let tables = self.tables(world);
            let present = world.events.len();
            let brings_nothing = |command: &Command| match command {
                Command::Import(response) => response.answered == present,
                _ => false,
            };
            if !world.commands.last().is_some_and(brings_nothing) {
                steps.push(Step::Sync);
            }
            steps.push(if world.late.is_some() { Step::Deliver } else { Step::Answer });
            if tables.remembers(NAMED) {
                steps.push(Step::Forget);
            }
            if tables.request().since.is_some() {
                steps.push(Step::ForgetPeer);
            }
        }
        if world.minted.is_none() && world.token.is_some() {
            steps.extend((0..=world.commands.len()).map(Step::Mint));
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Origin(event) => world.events.push(event),
            Step::Issue => world.token = Some(self.issue(last, false)),
            Step::Forge => world.token = Some(self.issue(last, true)),
            Step::Sync => world.commands.push(Command::Import(self.answer(last))),
            Step::Answer => world.late = Some(self.answer(last)),
            Step::Deliver => world.commands.push(Command::Import(world.late.take()?)),
            Step::Forget => world.commands.push(Command::Forget(NAMED)),
            Step::ForgetPeer => world.commands.push(Command::ForgetPeer),
            Step::Mint(applied) => world.minted = Some(self.mint(last, applied)?),
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_ACCEPTED, |model: &Self, world: &World| {
                !Self::any_token(world, |token| {
                    model.verdict(world, token) == Verdict::Clear
                        && must_be_refused(token, &world.events, &world.commands)
                })
            }),
            Property::always(NEVER_UNREAD, |model: &Self, world: &World| {
                !Self::any_token(world, |token| {
                    model.verdict(world, token) == Verdict::Clear
                        && !is_incarnation_read(token, &world.commands)
                })
            }),
            Property::always(NEVER_DIFFERENT, |model: &Self, world: &World| {
                !Self::any_token(world, |token| {
                    let verdict = model.verdict(world, token);
                    verdict != judge_by_logs(token, &world.events, &world.commands)
                })
            }),
            Property::always(NEVER_HELD, |model: &Self, world: &World| !model.tables(world).is_held()),
            Property::sometimes("a minted token is accepted", |model: &Self, world: &World| {
                let is_clear = |token: &Token| model.verdict(world, token) == Verdict::Clear;
                world.minted.as_ref().is_some_and(is_clear) && !world.events.is_empty()
            }),
            Property::sometimes(
                "a token of a second incarnation is accepted",
                |model: &Self, world: &World| {
                    let is_clear = |token: &Token| model.verdict(world, token) == Verdict::Clear;
                    world.token.is_some_and(|token| token.at.incarnation == 1 && is_clear(&token))
                },
            ),
        ]
    }
}

/// No token is accepted that the origin fabric's log revokes.
pub const NEVER_ACCEPTED: &str = "no token is accepted that was revoked before the last response";
/// No token is accepted by the log of another incarnation.
pub const NEVER_UNREAD: &str = "no token is accepted by the log of another incarnation";
/// The tables decide as the logs do.
pub const NEVER_DIFFERENT: &str = "the verdict of the tables is that of the logs";
/// No peer waits for an operator.
pub const NEVER_HELD: &str = "no peer is held that lost nothing";
