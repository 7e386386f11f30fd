//! Goes through all states of a model, the nearest first.

use std::collections::hash_map::{Entry, HashMap};
use std::collections::{HashSet, VecDeque};

use super::Model;
use super::server::{Call, Server};
use super::world::{Step, World};

/// What an exploration has found.
#[derive(Debug)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    /// Each call that a server carried out, with the server before it; none twice.
    pub(crate) calls: HashSet<(Server, Call)>,
}

/// A way to a state that must not be.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) what: &'static str,
    pub(crate) trace: Vec<String>,
}

/// Finds all states, or the shortest way to a violation.
pub(crate) fn explore(model: &Model) -> Result<Explored, Violation> {
    let mut numbers = HashMap::from([(World::begin(model), 0_usize)]);
    // How each state was first reached, and the states before it.
    let mut reached: Vec<Option<(usize, Step)>> = vec![None];
    let mut before: Vec<Vec<usize>> = vec![Vec::new()];
    let mut ends = Vec::new();
    let mut calls = HashSet::new();
    let mut next = VecDeque::from([(World::begin(model), 0)]);
    while let Some((world, number)) = next.pop_front() {
        if let Some(what) = world.violation(model) {
            let trace = trace(&reached, number);
            return Err(Violation { what, trace });
        }
        if world.is_end(model) {
            ends.push(number);
        }
        for (step, after) in world.steps(model) {
            if let Some(call) = &step.call
                && !calls.contains(call)
            {
                calls.insert(call.clone());
            }
            let fresh = reached.len();
            let to = match numbers.entry(after) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    next.push_back((new.key().clone(), fresh));
                    new.insert(fresh);
                    reached.push(Some((number, step)));
                    before.push(Vec::new());
                    fresh
                }
            };
            before[to].push(number);
        }
    }
    let mut leads_to_an_end = vec![false; reached.len()];
    while let Some(number) = ends.pop() {
        if !std::mem::replace(&mut leads_to_an_end[number], true) {
            ends.extend(&before[number]);
        }
    }
    if let Some(stuck) = leads_to_an_end.iter().position(|leads| !leads) {
        return Err(Violation {
            what: "no end can be reached any more",
            trace: trace(&reached, stuck),
        });
    }
    Ok(Explored {
        states: reached.len(),
        calls,
    })
}

fn trace(reached: &[Option<(usize, Step)>], mut number: usize) -> Vec<String> {
    let mut trace = Vec::new();
    while let Some((from, step)) = &reached[number] {
        trace.push(step.to_string());
        number = *from;
    }
    trace.reverse();
    trace
}
