#include "model/chat_template/heap.h"

#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ovq::jinja {
namespace {

bool IsIntegral(double number) {
  return number >= -0x1p63 && number < 0x1p63 && number == std::floor(number);
}

}  // namespace

void Heap::Fail(ErrorKind kind, std::string message) const {
  throw Error{kind, line_, std::move(message)};
}

void Heap::TypeError(std::string message) const {
  Fail(ErrorKind::kType, absl::StrCat("TypeError: ", message));
}

void Heap::Undefined(Value value) const {
  const jinja::Undefined& undefined = value.undefined();
  Fail(undefined.unsafe ? ErrorKind::kSecurity : ErrorKind::kUndefined, undefined.why);
}

void Heap::FailStepLimit() const {
  Fail(ErrorKind::kLimit, absl::StrCat("more than ", limits_.max_steps, " steps"));
}

void Heap::Spend(size_t bytes) {
  if (bytes > limits_.max_value_bytes - bytes_) {
    Fail(ErrorKind::kLimit,
         absl::StrCat("more than ", limits_.max_value_bytes, " bytes of values"));
  }
  bytes_ += bytes;
  Scan(bytes);
}

void Heap::SpendEach(size_t n, size_t size) {
  size_t bytes = 0;
  Spend(__builtin_mul_overflow(n, size, &bytes) ? SIZE_MAX : bytes);
}

Value Heap::Text(std::string text, bool safe) {
  Spend(sizeof(Str) + text.size());
  strings_.push_back({std::move(text), safe});
  return Value::FromPointer(Kind::kString, &strings_.back());
}

Value Heap::Make(Kind kind, std::vector<Value> items, std::string shown) {
  Spend(sizeof(List) + items.size() * sizeof(Value));
  lists_.push_back({std::move(items), std::move(shown), 0});
  return Value::FromPointer(kind, &lists_.back());
}

Value Heap::MakeUndefined(std::string why, bool unsafe) {
  Spend(sizeof(jinja::Undefined) + why.size());
  undefined_.push_back({std::move(why), unsafe});
  return Value::FromPointer(Kind::kUndefined, &undefined_.back());
}

Value Heap::MakeDict(Kind kind) {
  Spend(sizeof(Dict));
  dicts_.emplace_back();
  return Value::FromPointer(kind, &dicts_.back());
}

void Heap::Set(Value dict, Value key, Value value) {
  std::string text = KeyText(*this, key);
  Spend(2 * sizeof(Value) + sizeof(std::string) + sizeof(size_t) + text.size());
  dict.dict().Set(std::move(text), key, value);
}

Value Heap::MakeCallable(Callable callable) {
  Spend(sizeof(Callable));
  callables_.push_back(callable);
  return Value::FromPointer(Kind::kCallable, &callables_.back());
}

Frame* Heap::MakeFrame(const Frame* parent) {
  Spend(sizeof(Frame));
  frames_.emplace_back().parent = parent;
  return &frames_.back();
}

void Heap::SetName(Frame* frame, std::string_view name, Value value) {
  const auto [place, is_new] = frame->names.insert_or_assign(name, value);
  if (is_new) Spend(sizeof(*place));
}

Loop* Heap::MakeLoop() {
  Spend(sizeof(Loop));
  return &loops_.emplace_back();
}

Level::Level(Heap& heap, int line) : heap_(heap), outer_line_(heap.line_) {
  if (heap.depth_ >= heap.limits_.max_depth) {
    heap.Fail(ErrorKind::kLimit,
              absl::StrCat("nested more than ", heap.limits_.max_depth, " levels deep"));
  }
  heap.Step();
  ++heap.depth_;
  if (line > 0) heap.line_ = line;
}

std::string KeyText(Heap& heap, Value key) {
  const Level level(heap);
  switch (key.kind()) {
    case Kind::kString:
      heap.Spend(key.text().size());
      return absl::StrCat("s", std::string(key.text()));
    case Kind::kBool:
    case Kind::kInt:
      return absl::StrCat("i", key.integer());
    case Kind::kFloat:
      return IsIntegral(key.number())
                 ? absl::StrCat("i", static_cast<int64_t>(key.number()))
                 : absl::StrCat("f", absl::Hex(std::bit_cast<uint64_t>(key.number())));
    case Kind::kNone:
      return "n";
    case Kind::kTuple: {
      std::string text = "(";
      for (const Value item : key.list().items) {
        const std::string part = KeyText(heap, item);
        heap.Spend(part.size());
        absl::StrAppend(&text, part.size(), ":", part);
      }
      return text;
    }
    case Kind::kList:
    case Kind::kDict:
      heap.TypeError(absl::StrCat("unhashable type: '", TypeName(key), "'"));
    default:
      return absl::StrCat("o", reinterpret_cast<uintptr_t>(key.object()));
  }
}

}  // namespace ovq::jinja
