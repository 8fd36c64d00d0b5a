// Heap owns the values of one rendering and enforces its limits. Errors are exceptions inside this
// folder, because every operation of a template can fail; ChatTemplate turns them into statuses.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat_template/limits.h"
#include "model/chat_template/value.h"

namespace ovq::jinja {

enum class ErrorKind {
  kRaised,     // raised by the template; the message is for the caller
  kUndefined,  // attribute, item or call of an undefined value
  kType,       // an operation got the wrong kind of value
  kSyntax,
  kSecurity,  // the sandbox forbids it
  kLimit,
};

struct Error {
  ErrorKind kind;
  int line;
  std::string message;
};

class Heap {
 public:
  explicit Heap(const RenderLimits& limits) : limits_(limits) {}
  Heap(const Heap&) = delete;

  [[noreturn]] void Fail(ErrorKind kind, std::string message) const;
  // Throws kType with "TypeError: ...".
  [[noreturn]] void TypeError(std::string message) const;
  // Throws the error of using an undefined value.
  [[noreturn]] void Undefined(Value value) const;

  void Step(int64_t n = 1) {
    steps_ += n;
    if (steps_ > limits_.max_steps) FailStepLimit();
  }
  // Charges for reading `bytes` of text.
  void Scan(size_t bytes) { Step(static_cast<int64_t>(bytes / 64)); }
  // Charges for memory; call it before allocating. Memory is released at the end of the rendering
  // only.
  void Spend(size_t bytes);
  // Charges n times size bytes, a product that may overflow.
  void SpendEach(size_t n, size_t size);

  Value Text(std::string text, bool safe = false);
  Value Make(Kind kind, std::vector<Value> items, std::string shown = "");
  Value MakeUndefined(std::string why, bool unsafe = false);
  Value MakeDict(Kind kind = Kind::kDict);
  void Set(Value dict, Value key, Value value);
  Value MakeCallable(Callable callable);
  Frame* MakeFrame(const Frame* parent);
  void SetName(Frame* frame, std::string_view name, Value value);
  Loop* MakeLoop();

  const RenderLimits& limits() const { return limits_; }

 private:
  friend class Level;
  [[noreturn]] void FailStepLimit() const;

  const RenderLimits limits_;
  int64_t steps_ = 0;
  size_t bytes_ = 0;
  int depth_ = 0;
  int line_ = 1;
  std::deque<Str> strings_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<jinja::Undefined> undefined_;
  std::deque<Callable> callables_;
  std::deque<Frame> frames_;
  std::deque<Loop> loops_;
};

// Counts one level and one step of nesting; errors name `line` while it lives.
class Level {
 public:
  explicit Level(Heap& heap, int line = 0);
  ~Level() {
    --heap_.depth_;
    heap_.line_ = outer_line_;
  }
  Level(const Level&) = delete;

 private:
  Heap& heap_;
  const int outer_line_;
};

// A text that is equal for keys that a dict treats as equal. kType for values that cannot be keys.
std::string KeyText(Heap& heap, Value key);

}  // namespace ovq::jinja
