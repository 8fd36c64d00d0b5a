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

void SortHeads(std::vector<Head>& heads) {
  std::sort(heads.begin(), heads.end(), Before);
  heads.erase(std::unique(heads.begin(), heads.end()), heads.end());
}

}  // namespace

int64_t Stacks::CountFrames() const {
  int64_t n_frames = 0;
  for (const Head& head : heads) n_frames += head.rest ? head.rest->depth : 0;
  return n_frames;
}

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

std::array<uint64_t, 4> StackMachine::FindBytes(const Stacks& from) const {
  std::array<uint64_t, 4> bytes{};
  for (const Head& head : from.heads) {
    for (const Automaton::Range& range : automaton_->ranges(head.state)) {
      for (int byte = range.first; byte <= range.last; ++byte) {
        bytes[byte / 64] |= uint64_t{1} << byte % 64;
      }
    }
  }
  return bytes;
}

std::array<uint64_t, 2> StackMachine::FindAsciiClass(const Stacks& from) const {
  std::array<uint64_t, 2> bytes{};
  if (from.heads.size() > kMaxClassHeads) return bytes;
  constexpr int32_t kNowhere = -1;
  std::array<int32_t, 128> classes{};             // [byte]
  std::vector<std::pair<int32_t, int32_t>> keys;  // [class]: the class before, and the new state
  std::vector<bool> goes_on{false};               // [class]
  for (const Head& head : from.heads) {
    std::array<int32_t, 128> to;
    to.fill(kNowhere);
    for (const Automaton::Range& range : automaton_->ranges(head.state)) {
      for (int byte = range.first; byte <= std::min<int>(range.last, 127); ++byte) {
        to[byte] = range.to;
      }
    }
    const std::vector<bool> went_on = std::move(goes_on);
    keys.clear();
    goes_on.clear();
    for (size_t byte = 0; byte < classes.size(); ++byte) {
      const std::pair key(classes[byte], to[byte]);
      const auto known = std::find(keys.rbegin(), keys.rend(), key);
      classes[byte] = static_cast<int32_t>(keys.rend() - known) - 1;
      if (known != keys.rend()) continue;
      classes[byte] = static_cast<int32_t>(keys.size());
      keys.push_back(key);
      goes_on.push_back(went_on[key.first] || key.second != kNowhere);
    }
  }
  std::vector<int> sizes(goes_on.size());
  for (const int32_t c : classes) sizes[c] += goes_on[c] ? 1 : 0;
  const auto largest = std::max_element(sizes.begin(), sizes.end());
  for (size_t byte = 0; byte < classes.size() && *largest > 0; ++byte) {
    if (classes[byte] == largest - sizes.begin()) bytes[byte / 64] |= uint64_t{1} << byte % 64;
  }
  return bytes;
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

template <class Find, class Make>
Stacks StackMachine::Replace(const Stacks& stacks, const Find& find, const Make& make) {
  Stacks replaced;
  replaced.may_end = stacks.may_end;
  std::vector<const FramePointer*> path;  // without a replacement, from the top
  for (const Head& head : stacks.heads) {
    path.clear();
    FramePointer rest;
    for (const FramePointer* frame = &head.rest; *frame != nullptr; frame = &(*frame)->parent) {
      rest = find(*frame);
      if (rest != nullptr) break;
      path.push_back(frame);
    }
    for (auto frame = path.rbegin(); frame != path.rend(); ++frame) rest = make(**frame, rest);
    replaced.heads.push_back({head.state, std::move(rest)});
  }
  SortHeads(replaced.heads);
  return replaced;
}

Stacks StackMachine::Adopt(const Stacks& stacks) {
  FrameMap<const Frame*> copies;
  return Replace(
      stacks,
      [&](const FramePointer& frame) {
        const auto found = copies.find(frame.get());
        return found == copies.end() ? nullptr : found->second;
      },
      [&](const FramePointer& frame, const FramePointer& parent) {
        return copies[frame.get()] = Push(frame->expression, frame->index, parent);
      });
}

Stacks StackMachine::Represent(const Stacks& stacks, int64_t horizon) {
  return Replace(
      stacks,
      [&](const FramePointer& frame) {
        if (!frame->counts) return frame;
        const auto found = represented_.find({frame.get(), horizon});
        return found == represented_.end() ? nullptr : found->second;
      },
      [&](const FramePointer& frame, const FramePointer& parent) {
        FramePointer made = Push(frame->expression, RepresentIndex(*frame, horizon), parent);
        represented_.emplace(std::pair(frame.get(), horizon), made);
        return made;
      });
}

int64_t StackMachine::RepresentIndex(const Frame& frame, int64_t horizon) const {
  const Automaton::Expression& node = automaton_->expression(frame.expression);
  if (node.kind == Kind::kSequence) return frame.index;
  // The item that is begun may end at once, the others need their bytes.
  const int64_t most_ends = 1 + horizon / node.shortest;
  if (node.most >= 0 && frame.index + most_ends + 1 >= node.most) return frame.index;
  if (frame.index + 1 >= node.least) return std::max<int64_t>(node.least - 1, 0);
  return frame.index + most_ends < node.least ? 0 : frame.index;
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
  const bool counts = (parent && parent->counts) ||
                      (node.kind == Kind::kRepeat && (node.most >= 0 || node.least > 1));
  frame = std::make_shared<const Frame>(
      Frame{expression, index, parent, below + 1, need, counts, next_id_++});
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
  n_work_ = static_cast<int64_t>(work_.size());
  work_.clear();
  seen_.clear();
  SortHeads(to.heads);
  return fits && to.heads.size() <= kMaxStacks && to.CountFrames() <= kMaxFrames;
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
