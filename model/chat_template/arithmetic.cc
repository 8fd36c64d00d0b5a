// Binary and Unary of operators.h.
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"

namespace ovq::jinja {
namespace {

[[noreturn]] void Overflow(Heap& heap) {
  heap.Fail(ErrorKind::kLimit, "an integer of more than 64 bits");
}

[[noreturn]] void ByZero(Heap& heap) {
  heap.Fail(ErrorKind::kType, "ZeroDivisionError: division by zero");
}

Value Power(Heap& heap, Value a, Value b) {
  if (!a.is_integer() || !b.is_integer() || b.integer() < 0) {
    if (a.number() == 0 && b.number() < 0) ByZero(heap);
    const double power = std::pow(a.number(), b.number());
    if (std::isnan(power) && !std::isnan(a.number()) && !std::isnan(b.number())) {
      heap.TypeError("a power that is a complex number");
    }
    return Value::Float(power);
  }
  int64_t power = 1, base = a.integer();
  for (int64_t n = b.integer(); n > 0; n >>= 1) {
    if ((n & 1) != 0 && __builtin_mul_overflow(power, base, &power)) Overflow(heap);
    if (n > 1 && __builtin_mul_overflow(base, base, &base)) Overflow(heap);
  }
  return Value::Int(power);
}

Value IntegerBinary(Heap& heap, std::string_view name, int64_t a, int64_t b) {
  int64_t result = 0;
  if (name == "+"   ? __builtin_add_overflow(a, b, &result)
      : name == "-" ? __builtin_sub_overflow(a, b, &result)
      : name == "*" ? __builtin_mul_overflow(a, b, &result)
                    : false) {
    Overflow(heap);
  }
  if (name != "//" && name != "%") return Value::Int(result);
  if (b == 0) ByZero(heap);
  if (b == -1) {  // the one divisor whose quotient may overflow
    if (name == "//" && __builtin_sub_overflow(int64_t{0}, a, &result)) Overflow(heap);
    return Value::Int(result);
  }
  // The quotient is rounded down, the remainder has the sign of b.
  const int64_t rest = a % b;
  const bool rounds = rest != 0 && (rest < 0) != (b < 0);
  return Value::Int(name == "//" ? a / b - rounds : rest + (rounds ? b : 0));
}

Value Number(Heap& heap, std::string_view name, Value a, Value b) {
  if (name == "**") return Power(heap, a, b);
  if (name != "/" && a.is_integer() && b.is_integer()) {
    return IntegerBinary(heap, name, a.integer(), b.integer());
  }
  const double x = a.number(), y = b.number();
  if (name == "+") return Value::Float(x + y);
  if (name == "-") return Value::Float(x - y);
  if (name == "*") return Value::Float(x * y);
  if (y == 0) ByZero(heap);
  if (name == "/") return Value::Float(x / y);
  double rest = std::fmod(x, y);
  if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
  if (name == "%") return Value::Float(rest != 0 ? rest : std::copysign(0.0, y));
  return Value::Float(std::round((x - rest) / y));
}

// A text or list repeated `count` times.
Value Repeated(Heap& heap, Value value, int64_t count) {
  const size_t n = std::max<int64_t>(count, 0);
  if (value.is_string()) {
    heap.SpendEach(n, value.text().size());
    std::string text;
    if (value.text().empty()) return value;
    text.reserve(n * value.text().size());
    for (size_t i = 0; i < n; ++i) text += value.text();
    return heap.Text(std::move(text), value.string().safe);
  }
  const std::vector<Value>& once = value.list().items;
  heap.SpendEach(n, once.size() * sizeof(Value));
  std::vector<Value> items;
  for (size_t i = 0; i < n && !once.empty(); ++i) {
    items.insert(items.end(), once.begin(), once.end());
  }
  return heap.Make(value.kind(), std::move(items));
}

bool IsRepeatable(Value value) {
  return value.is_string() || value.kind() == Kind::kList || value.kind() == Kind::kTuple;
}

}  // namespace

Value Binary(Heap& heap, std::string_view name, Value a, Value b) {
  if (a.is_undefined() || b.is_undefined()) heap.Undefined(a.is_undefined() ? a : b);
  if (a.is_number() && b.is_number()) return Number(heap, name, a, b);
  if (name == "+" && a.is_string() && b.is_string()) {
    const bool safe = a.string().safe || b.string().safe;
    if (safe) {
      a = Escape(heap, a);
      b = Escape(heap, b);
    }
    heap.Spend(a.text().size() + b.text().size());
    return heap.Text(absl::StrCat(std::string(a.text()), std::string(b.text())), safe);
  }
  if (name == "+" && a.kind() == b.kind() && IsRepeatable(a)) {
    std::vector<Value> items = Items(heap, a);
    const std::vector<Value> more = Items(heap, b);
    items.insert(items.end(), more.begin(), more.end());
    return heap.Make(a.kind(), std::move(items));
  }
  if (name == "*" && IsRepeatable(a) && b.is_integer()) return Repeated(heap, a, b.integer());
  if (name == "*" && IsRepeatable(b) && a.is_integer()) return Repeated(heap, b, a.integer());
  if (name == "%" && a.is_string()) return FormatPercent(heap, a, b);
  heap.TypeError(absl::StrCat("unsupported operand type(s) for ", std::string(name), ": '",
                              TypeName(a), "' and '", TypeName(b), "'"));
}

Value Unary(Heap& heap, std::string_view name, Value value) {
  if (name == "not") return Value::Bool(!Truth(value));
  if (value.is_undefined()) heap.Undefined(value);
  if (!value.is_number()) {
    heap.TypeError(absl::StrCat("bad operand type for unary ", std::string(name), ": '",
                                TypeName(value), "'"));
  }
  if (name == "+") return value.is_integer() ? Value::Int(value.integer()) : value;
  if (!value.is_integer()) return Value::Float(-value.number());
  return IntegerBinary(heap, "-", 0, value.integer());
}

}  // namespace ovq::jinja
