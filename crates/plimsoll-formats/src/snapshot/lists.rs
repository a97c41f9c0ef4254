//! Lists of a snapshot: rows that follow each other are a run, frames are a stack, texts are texts, and lists of
//! events are the traces.

use super::rows::{Group, Tables};
use super::value::{self, Value};
use super::{FrameId, NameId, Trace};
use crate::FormatError;

impl Tables {
    /// What to put at the end of a list that ends in `last`: rows that follow each other become one run.
    #[inline]
    pub(super) fn join(&mut self, last: Option<Value>, item: Value) -> Option<Value> {
        if !matches!(item.tag(), value::EVENT..=value::HISTORY) {
            return Some(item);
        }
        let (table, begin) = (item.tag(), item.place());
        if let Some(last) = last.filter(|v| v.is(value::RUN))
            && let Some(group) = self.groups.get_mut(last.place() as usize)
            && (group.table, group.end) == (table, begin)
        {
            group.end += 1;
            return None;
        }
        self.groups.push(Group { table, begin, end: begin + 1 });
        Some(Value::new(value::RUN, self.groups.len() as u32 - 1))
    }

    /// Whether this is the last part of a list of events.
    pub(super) fn is_event_run(&self, v: Value) -> bool {
        v.is(value::RUN)
            && self.groups.get(v.place() as usize).is_some_and(|g| g.table == value::EVENT)
    }

    /// The rows of a finished list, if they are of this table.
    pub(super) fn group(&self, v: Value, table: value::Tag) -> Option<Group> {
        let group = v.is(value::ROWS).then(|| self.groups.get(v.place() as usize).copied());
        group.flatten().filter(|group| group.table == table)
    }

    /// The rows of a list, by place.
    pub(super) fn rows(&self, v: Value, table: value::Tag) -> std::ops::Range<usize> {
        self.group(v, table).map_or(0..0, |group| group.begin as usize..group.end as usize)
    }

    pub(super) fn texts(&self, v: Value) -> Option<&[NameId]> {
        let texts = v.is(value::TEXTS).then(|| self.texts.get(v.place() as usize));
        texts.flatten().map(Vec::as_slice)
    }

    /// The traces that a list of lists, or one list, stands for.
    pub(super) fn trace_list(&self, v: Value) -> Vec<Option<u32>> {
        match v.tag() {
            value::TRACE => vec![Some(v.place())],
            value::TRACES => self.trace_lists.get(v.place() as usize).cloned().unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    /// A finished list.
    pub(super) fn list(&mut self, items: &[Value]) -> Result<Value, FormatError> {
        let Some(first) = items.first() else { return Ok(Value::EMPTY) };
        let all = |tag| items.iter().all(|v| v.is(tag));
        match (first.tag(), items) {
            (value::FRAME, _) if all(value::FRAME) => {
                self.scratch.clear();
                self.scratch.extend(items.iter().map(|v| FrameId(v.place())));
                Ok(Value::new(value::STACK, self.stacks.intern(&self.scratch)?.0))
            }
            (value::RUN, [run]) => {
                if self.is_event_run(*run) {
                    return self.trace(*run);
                }
                Ok(Value::new(value::ROWS, run.place()))
            }
            (value::RUN, _) => {
                self.odd
                    .note("lists with items of several kinds, or with an item twice, were skipped");
                Ok(Value::OTHER)
            }
            (value::TEXT, _) if all(value::TEXT) => {
                let texts: Vec<NameId> = items.iter().filter_map(|v| v.name()).collect();
                let next = self.texts.len() as u32;
                let id = *self.text_ids.entry(texts.clone()).or_insert(next);
                if id == next {
                    self.texts.push(texts);
                }
                Ok(Value::new(value::TEXTS, id))
            }
            (value::TRACE | value::EMPTY, _)
                if items.iter().all(|v| v.is(value::TRACE) || v.is(value::EMPTY)) =>
            {
                let list = items.iter().map(|v| v.is(value::TRACE).then_some(v.place()));
                self.trace_lists.push(list.collect());
                Ok(Value::new(value::TRACES, self.trace_lists.len() as u32 - 1))
            }
            (_, [a, b]) => Ok(self.pair(*a, *b).unwrap_or(Value::OTHER)),
            _ => Ok(Value::OTHER),
        }
    }

    /// Takes the events of a finished list out of the table that fills.
    fn trace(&mut self, run: Value) -> Result<Value, FormatError> {
        let Some(group) = self.groups.get(run.place() as usize).copied() else {
            return Ok(Value::OTHER);
        };
        let begin = group.begin.checked_sub(self.events_before).map(|n| n as usize);
        let end = group.end.checked_sub(self.events_before).map(|n| n as usize);
        let (Some(begin), Some(end)) = (begin, end) else {
            self.odd.note("lists of events that belong to another list were skipped");
            return Ok(Value::OTHER);
        };
        if end > self.events.len() {
            return Ok(Value::OTHER);
        }
        let mut events = if (begin, end) == (0, self.events.len()) {
            std::mem::take(&mut self.events)
        } else {
            self.events.drain(..end).skip(begin).collect()
        };
        events.shrink_to_fit();
        self.events_before += end as u32;
        let has_pools = std::mem::take(&mut self.events_have_pools);
        self.traces.push(Trace { events, has_pools });
        Ok(Value::new(value::TRACE, self.traces.len() as u32 - 1))
    }
}
