// Value: a template's values, Python's as far as templates can tell; and the Heap, which owns those
// of one rendering and enforces its limits. Errors are exceptions inside this folder, because every
// operation of a template can fail; ChatTemplate turns them into statuses.
#pragma once

#include <cstdint>
#include <ctime>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "model/chat_template/limits.h"

namespace ovq::jinja {

struct Builtin;  // builtin.h
struct For;      // program.h
struct Macro;
struct Callable;
struct Loop;
class Rendering;

enum class Kind : uint8_t {
  kMissing,    // an argument that was not given; never visible to templates
  kUndefined,  // an undefined name, attribute or item
  kNone,
  kBool,
  kInt,  // 64 bits; overflow is an error
  kFloat,
  kString,
  kList,
  kTuple,
  kRange,
  kView,       // keys(), values(), items() of a dict
  kGenerator,  // result of map, select etc.: no length, read once
  kDict,
  kNamespace,
  kCallable,
  kLoop,
};

struct Str {
  std::string text;   // UTF-8
  bool safe = false;  // Markup: + escapes the other operand
};

// A reference of 16 bytes to a value in a Heap, or in the Template for literals; numbers are in it.
class Value {
 public:
  Value() : kind_(Kind::kMissing), integer_(0) {}
  static Value None() { return Value(Kind::kNone); }
  static Value Bool(bool value) { return Value(Kind::kBool, int64_t{value}); }
  static Value Int(int64_t value) { return Value(Kind::kInt, value); }
  static Value Float(double value) {
    Value made(Kind::kFloat);
    made.real_ = value;
    return made;
  }
  // Object types by kind: kUndefined Undefined; kString Str; kList to kGenerator List; kDict,
  // kNamespace Dict; kCallable Callable; kLoop Loop.
  static Value FromPointer(Kind kind, const void* object) {
    Value made(kind);
    made.object_ = object;
    return made;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool given() const { return kind_ != Kind::kMissing; }
  bool given_some() const { return kind_ != Kind::kMissing && kind_ != Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_safe() const { return is_string() && As<Str>().safe; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integer() || kind_ == Kind::kFloat; }
  bool has_items() const { return kind_ >= Kind::kList && kind_ <= Kind::kGenerator; }
  bool has_places() const { return kind_ >= Kind::kString && kind_ <= Kind::kRange; }  // [0], [1:2]

  int64_t integer() const { return integer_; }  // for kInt and kBool
  double number() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(integer_); }
  template <class Object>
  Object& As() const {
    return *static_cast<Object*>(const_cast<void*>(object_));
  }
  std::string_view text() const { return As<Str>().text; }
  const std::vector<Value>& items() const;                      // of List
  const std::vector<std::pair<Value, Value>>& entries() const;  // of Dict
  const void* object() const { return object_; }

 private:
  explicit Value(Kind kind, int64_t integer = 0) : kind_(kind), integer_(integer) {}

  Kind kind_;
  union {
    int64_t integer_;
    double real_;
    const void* object_;
  };
};

struct Undefined {
  std::string why;
  bool unsafe = false;  // an attribute that the sandbox hides
};

struct List {
  std::vector<Value> items;
  std::string shown;  // text of a range or view; "group" for the pairs of groupby
  size_t next = 0;    // generators: index of the first unread item
};

// Keeps keys in insertion order.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  absl::flat_hash_map<std::string, size_t> places;  // in entries, by KeyText

  const Value* Find(const std::string& key) const;  // by KeyText; null if there is none
  const Value* FindName(std::string_view name) const { return Find("s" + std::string(name)); }
};

// A scope: its own names, then those of the enclosing frames.
struct Frame {
  const Frame* parent = nullptr;
  absl::flat_hash_map<std::string_view, Value> names;  // keys are views into the Template
};

struct Callable {
  std::string_view name = {};
  const Builtin* builtin = nullptr;  // a builtin function or method, or
  const Macro* macro = nullptr;      // a macro
  Value self = {};                   // bound object of a method
  const Frame* frame = nullptr;      // scope in which a macro was defined
};

// The variable `loop` of a for. An `if` of the for tests an item when the loop reaches it or looks
// ahead, as what the bodies before have set may decide (Rendering::FindItems).
struct Loop {
  const For* statement = nullptr;
  Rendering* rendering = nullptr;
  const Frame* frame = nullptr;  // scope around the for
  std::vector<Value> items;      // without an `if`, all; else those that have passed so far
  std::vector<Value> untested = {};
  size_t n_tested = 0;  // of `untested`
  size_t at = 0;
  int depth = 1;
  std::vector<Value> last_changed = {};
  bool has_changed = false;
};

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

inline absl::string_view MessagePart(std::string_view text) { return AbslView(text); }
template <class Part>
const Part& MessagePart(const Part& part) {
  return part;
}

class Heap {
 public:
  // `now` is the time of strftime_now.
  Heap(const RenderLimits& limits, const std::tm& now) : limits(limits), now(now) {}
  Heap(const Heap&) = delete;

  const RenderLimits limits;
  const std::tm& now;

  // Fails with a message of these parts.
  template <class... Parts>
  [[noreturn]] void Fail(ErrorKind kind, const Parts&... parts) const {
    throw Error{kind, line_, absl::StrCat(MessagePart(parts)...)};
  }
  template <class... Parts>
  [[noreturn]] void TypeError(const Parts&... parts) const {
    Fail(ErrorKind::kType, "TypeError: ", parts...);
  }
  template <class... Parts>
  [[noreturn]] void ValueError(const Parts&... parts) const {
    Fail(ErrorKind::kType, "ValueError: ", parts...);
  }
  // Fails if the value is undefined.
  void RequireDefined(Value value) const;

  void Step(int64_t n = 1) {
    steps_ += n;
    if (steps_ > limits.max_steps)
      Fail(ErrorKind::kLimit, "more than ", limits.max_steps, " steps");
  }
  // Charges for reading `bytes` of text.
  void Scan(size_t bytes) { Step(static_cast<int64_t>(bytes / 64)); }
  // Charges for memory; call it before allocating. Memory is released at the end of the rendering
  // only.
  void Spend(size_t bytes);
  // Charges n times size bytes, a product that may overflow.
  void SpendEach(size_t n, size_t size);

  Value Text(std::string_view text, bool safe = false);
  Value Make(Kind kind, std::vector<Value> items, std::string shown = "");
  Value MakeUndefined(std::string why, bool unsafe = false);
  Value MakeDict(Kind kind = Kind::kDict);
  // A later value of a key replaces an earlier one.
  void Set(Value dict, Value key, Value value);
  // Sets the named arguments of a call.
  void SetAll(Value dict, const std::vector<std::pair<std::string_view, Value>>& named);
  Value MakeCallable(Callable callable);
  Frame* MakeFrame(const Frame* parent);
  void SetName(Frame* frame, std::string_view name, Value value);
  Loop* MakeLoop(Loop loop);

 private:
  friend class Level;
  template <class Object>
  static Object* Keep(std::deque<Object>& all, Object object) {
    all.push_back(std::move(object));
    return &all.back();
  }

  int64_t steps_ = 0;
  size_t bytes_ = 0;
  int depth_ = 0;
  int line_ = 1;
  std::deque<Str> strings_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Undefined> undefined_;
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

// Python's name of the value's type.
std::string TypeName(Value value);
// Truth value, as tested by `if`.
bool Truth(Value value);
// A text that is equal for keys that a dict treats as equal. kType for values that cannot be keys.
std::string KeyText(Heap& heap, Value key);

}  // namespace ovq::jinja
