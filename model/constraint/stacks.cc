#include "model/constraint/stacks.h"

#include <algorithm>
#include <utility>

namespace ovq::constraint {
namespace {

using Kind = Automaton::Kind;

constexpr size_t kMaxWork = 8 * kMaxStacks;  // of one byte

bool Before(const Head& a, const Head& b) {
  const uint64_t a_id = a.rest ? a.rest->id : 0, b_id = b.rest ? b.rest->id : 0;
  return a.state != b.state ? a.state < b.state : a_id < b_id;
}

}  // namespace

StackMachine::StackMachine(std::shared_ptr<const Automaton> automaton)
    : automaton_(std::move(automaton)) {}

bool StackMachine::Begin(Stacks& stacks) {
  stacks = {};
  AddWork(automaton_->root(), nullptr);
  return Close(stacks);
}

StackMachine::Interval StackMachine::FindInterval(const Stacks& from, uint8_t byte) const {
  Interval interval;
  for (const Head& head : from.heads) {
    for (const Automaton::Range& range : automaton_->ranges(head.state)) {
      if (range.last < byte) {
        interval.first = std::max<uint8_t>(interval.first, range.last + 1);
      } else if (range.first > byte) {
        interval.last = std::min<uint8_t>(interval.last, range.first - 1);
        break;
      } else {
        interval.first = std::max(interval.first, range.first);
        interval.last = std::min(interval.last, range.last);
        interval.empty = false;
        break;
      }
    }
  }
  return interval;
}

bool StackMachine::Step(const Stacks& from, uint8_t byte, Stacks& to) {
  to = {};
  for (const Head& head : from.heads) {
    for (const Automaton::Range& range : automaton_->ranges(head.state)) {
      if (range.first > byte) break;
      if (byte <= range.last) Reach(range.to, head.rest, to);
    }
  }
  return Close(to);
}

Stacks StackMachine::Adopt(const Stacks& stacks) {
  Stacks adopted;
  adopted.may_end = stacks.may_end;
  std::vector<const Frame*> path;
  for (const Head& head : stacks.heads) {
    path.clear();
    for (const Frame* frame = head.rest.get(); frame != nullptr; frame = frame->parent.get()) {
      path.push_back(frame);
    }
    FramePointer rest;
    for (auto frame = path.rbegin(); frame != path.rend(); ++frame) {
      rest = Push((*frame)->expression, (*frame)->index, rest);
    }
    adopted.heads.push_back({head.state, std::move(rest)});
  }
  std::sort(adopted.heads.begin(), adopted.heads.end(), Before);
  return adopted;
}

FramePointer StackMachine::Push(int32_t expression, int64_t index, const FramePointer& parent) {
  FramePointer& frame = frames_[Key(expression, index, parent.get())];
  if (frame) return frame;
  const Automaton::Expression& node = automaton_->expression(expression);
  const int32_t below = parent ? parent->depth : 0;
  int32_t need = std::max(below + 1, parent ? parent->need : 0);
  if (node.kind == Kind::kSequence) {
    need = std::max(need, below + automaton_->part(node, index).height);
  } else if (index + 1 < node.least) {
    need = std::max(need, below + node.height);
  }
  frame =
      std::make_shared<const Frame>(Frame{expression, index, parent, below + 1, need, next_id_++});
  return frame;
}

void StackMachine::AddWork(int32_t expression, const FramePointer& frame) {
  if (frame && frame->need > kMaxDepth) return;
  if (seen_.emplace(expression, frame.get()).second) work_.push_back({expression, frame});
}

// All items of work are seen once each, so the result depends on no order.
bool StackMachine::Close(Stacks& to) {
  bool fits = true;
  for (size_t i = 0; i < work_.size() && fits; ++i) {
    const Work work = work_[i];
    if (work.expression < 0) {
      Return(work.frame, to);
    } else {
      Enter(work.expression, work.frame, to);
    }
    fits = work_.size() <= kMaxWork && to.heads.size() <= kMaxWork;
  }
  work_.clear();
  seen_.clear();
  std::sort(to.heads.begin(), to.heads.end(), Before);
  to.heads.erase(std::unique(to.heads.begin(), to.heads.end()), to.heads.end());
  return fits && to.heads.size() <= kMaxStacks;
}

void StackMachine::Reach(int32_t state, const FramePointer& rest, Stacks& to) {
  if (!automaton_->ranges(state).empty()) to.heads.push_back({state, rest});
  if (automaton_->accepts(state)) AddWork(-1, rest);
}

void StackMachine::Enter(int32_t expression, const FramePointer& frame, Stacks& to) {
  const Automaton::Expression& node = automaton_->expression(expression);
  switch (node.kind) {
    case Kind::kTerminal:
      Reach(node.first, frame, to);
      break;
    case Kind::kSequence:
      Continue(expression, 0, frame);
      break;
    case Kind::kChoice:
      for (int32_t i = 0; i < node.n_parts; ++i) {
        AddWork(automaton_->part(node, i).expression, frame);
      }
      break;
    case Kind::kRepeat:
      if (node.least == 0) AddWork(-1, frame);
      if (node.most != 0) Continue(expression, 0, frame);
      break;
  }
}

void StackMachine::Return(const FramePointer& frame, Stacks& to) {
  if (!frame) {
    to.may_end = true;
    return;
  }
  const Automaton::Expression& node = automaton_->expression(frame->expression);
  if (node.kind == Kind::kSequence) {
    Continue(frame->expression, frame->index, frame->parent);
    return;
  }
  const int64_t complete = frame->index + 1;
  if (complete >= node.least) AddWork(-1, frame->parent);
  if (node.most < 0) {
    // More than `least` items need not be counted; a frame stands for its next item, too.
    Continue(frame->expression, std::min(complete, std::max<int64_t>(node.least - 1, 0)),
             frame->parent);
  } else if (complete < node.most) {
    Continue(frame->expression, complete, frame->parent);
  }
}

// Enters part `index` of an expression on top of `parent`, with a frame if more may follow it.
void StackMachine::Continue(int32_t expression, int64_t index, const FramePointer& parent) {
  const Automaton::Expression& node = automaton_->expression(expression);
  if (node.kind == Kind::kRepeat) {
    const bool is_last = index + 1 == node.most;
    AddWork(automaton_->part(node, 0).expression,
            is_last ? parent : Push(expression, index, parent));
  } else if (node.n_parts == 0) {
    AddWork(-1, parent);
  } else {
    const bool is_last = index + 1 == node.n_parts;
    AddWork(automaton_->part(node, index).expression,
            is_last ? parent : Push(expression, index + 1, parent));
  }
}

}  // namespace ovq::constraint
