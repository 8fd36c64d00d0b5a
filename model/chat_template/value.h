// Value: a template's values, Python's as far as templates can tell. All but numbers live in the
// Heap of the rendering (literals in the Template) and are freed with it. A Value is a non-owning
// reference of 16 bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace ovq::jinja {

class Value;
struct Builtin;  // builtin.h
struct Macro;    // ast.h
struct Statement;

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

struct Undefined {
  std::string why;
  bool unsafe = false;  // an attribute that the sandbox hides
};

struct Str {
  std::string text;   // UTF-8
  bool safe = false;  // Markup: + escapes the other operand
};

struct List {
  std::vector<Value> items;
  std::string shown;  // text of a range or view; "group" for the pairs of groupby
  size_t next = 0;    // generators: index of the first unread item
};

// Keeps keys in insertion order.
class Dict {
 public:
  // `key` is KeyText of `name` (heap.h). A later value replaces an earlier one.
  void Set(std::string key, Value name, Value value);
  const Value* Find(const std::string& key) const;     // null if there is none
  const Value* FindName(std::string_view name) const;  // by text key
  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<Value, Value>> entries_;
  absl::flat_hash_map<std::string, size_t> places_;
};

struct Loop;
struct Callable;

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
  bool given() const { return kind_ != Kind::kMissing; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integer() || kind_ == Kind::kFloat; }
  bool has_items() const { return kind_ >= Kind::kList && kind_ <= Kind::kGenerator; }
  bool has_places() const { return kind_ >= Kind::kString && kind_ <= Kind::kRange; }  // [0], [1:2]

  int64_t integer() const { return integer_; }  // for kInt and kBool
  double number() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(integer_); }
  const Str& string() const { return *static_cast<const Str*>(object_); }
  std::string_view text() const { return string().text; }
  const Undefined& undefined() const { return *static_cast<const Undefined*>(object_); }
  List& list() const { return *static_cast<List*>(const_cast<void*>(object_)); }
  Dict& dict() const { return *static_cast<Dict*>(const_cast<void*>(object_)); }
  const Callable& callable() const { return *static_cast<const Callable*>(object_); }
  Loop& loop() const { return *static_cast<Loop*>(const_cast<void*>(object_)); }
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

// The variable `loop` of a for.
struct Loop {
  const Statement* statement = nullptr;
  const Frame* frame = nullptr;  // scope around the for
  std::vector<Value> items;
  size_t at = 0;
  int depth = 1;
  std::vector<Value> last_changed;
  bool has_changed = false;
};

// Python's name of the value's type.
std::string TypeName(Value value);
// Truth value, as tested by `if`.
bool Truth(Value value);

}  // namespace ovq::jinja
