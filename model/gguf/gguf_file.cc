// A file is: "GGUF", version u32, counts of tensors and of keys u64; for each key its text, the
// value's type u32 and the value; for each tensor its name, n_dims u32, dimensions u64, type u32,
// offset u64; then from the next multiple of general.alignment on the data, to which offsets refer.
// A text is its length u64 and bytes; a list is its elements' type u32, their number u64, and they.
#include "model/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ovq::model {
namespace {

using Value = kernels::Attrs::Value;

constexpr uint64_t kMaxMetadataBytes = 100'000'000;
constexpr int kMaxNesting = 8;  // of lists
constexpr uint32_t kTextType = 8, kListType = 9;
constexpr char kAlignment[] = "general.alignment";

absl::Status Damaged(const auto&... what) { return absl::DataLossError(absl::StrCat(what...)); }

// Reads one field after another; nothing once the bytes have run out.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : all_(bytes) {}

  bool ran_out() const { return ran_out_; }
  size_t position() const { return at_; }
  size_t left() const { return all_.size() - at_; }

  std::span<const std::byte> Bytes(uint64_t n) {
    ran_out_ |= n > left();
    if (ran_out_) return {};
    at_ += n;
    return all_.subspan(at_ - n, n);
  }
  template <class T>
  T Number() {
    T number{};
    const std::span<const std::byte> bytes = Bytes(sizeof(T));
    if (!ran_out_) std::memcpy(&number, bytes.data(), sizeof(T));
    return number;
  }
  std::string Text() {
    const std::span<const std::byte> bytes = Bytes(Number<uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> all_;
  size_t at_ = 0;
  bool ran_out_ = false;
};

template <class T>
Value Scalar(Cursor& cursor) {
  const T number = cursor.Number<T>();
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<double>(number);
  } else {
    if (std::cmp_greater(number, INT64_MAX)) return static_cast<double>(number);
    return static_cast<int64_t>(number);
  }
}

// A value of the type of that number, no list.
Value ReadScalar(uint32_t type, Cursor& cursor) {
  constexpr Value (*kRead[])(Cursor&) = {
      Scalar<uint8_t>,
      Scalar<int8_t>,
      Scalar<uint16_t>,
      Scalar<int16_t>,
      Scalar<uint32_t>,
      Scalar<int32_t>,
      Scalar<float>,
      [](Cursor& c) -> Value { return c.Number<uint8_t>() != 0; },
      [](Cursor& c) -> Value { return c.Text(); },
      nullptr,
      Scalar<uint64_t>,
      Scalar<int64_t>,
      Scalar<double>};
  return kRead[type](cursor);
}

bool IsUtf8(const Value& value) {
  const auto* const text = std::get_if<std::string>(&value);
  return text == nullptr || !FirstInvalidUtf8(*text);
}

absl::StatusOr<Value> ReadValue(uint32_t type, Cursor& cursor, int nesting = 0);

// Keeps each element in its own type: a list of 100 MB may have as many elements.
absl::StatusOr<Value> ReadList(Cursor& cursor, int nesting) {
  const auto type = cursor.Number<uint32_t>();
  const auto n = cursor.Number<uint64_t>();
  if (nesting == kMaxNesting) return Damaged("lists lie more than ", kMaxNesting, " deep");
  // An element has at least a byte, so that a false number ends with the bytes.
  const uint64_t least = type == kTextType ? sizeof(uint64_t) : 1;
  const uint64_t most = std::min<uint64_t>(n, cursor.left() / least);
  std::vector<std::string> texts;
  std::vector<int64_t> integers;
  std::vector<double> reals;  // from the first one on, integers too
  const auto add = [most](auto& list, auto element) {
    if (list.empty()) list.reserve(most);
    list.push_back(std::move(element));
  };
  for (uint64_t i = 0; i < n && !cursor.ran_out(); ++i) {
    ASSIGN_OR_RETURN(Value value, ReadValue(type, cursor, nesting + 1));
    if (auto* const text = std::get_if<std::string>(&value)) {
      add(texts, std::move(*text));
    } else if (const auto* const real = std::get_if<double>(&value)) {
      for (const int64_t integer : std::exchange(integers, {})) {
        add(reals, static_cast<double>(integer));
      }
      add(reals, *real);
    } else if (const auto* const flag = std::get_if<bool>(&value)) {
      add(integers, int64_t{*flag});
    } else if (const auto* const integer = std::get_if<int64_t>(&value)) {
      if (reals.empty()) {
        add(integers, *integer);
      } else {
        add(reals, static_cast<double>(*integer));
      }
    }
  }
  if (!texts.empty()) return texts;
  if (!reals.empty()) return reals;
  if (!integers.empty()) return integers;
  return Value();
}

absl::StatusOr<Value> ReadValue(uint32_t type, Cursor& cursor, int nesting) {
  if (type == kListType) return ReadList(cursor, nesting);
  constexpr uint32_t kLastType = 12;
  if (type > kLastType) return Damaged("type ", type, " is none of GGUF's, 0 to ", kLastType);
  Value value = ReadScalar(type, cursor);
  if (!IsUtf8(value)) return Damaged("not UTF-8");
  return value;
}

struct Header {
  uint64_t n_tensors, n_keys;
};
absl::StatusOr<Header> ReadHeader(Cursor& cursor) {
  constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
  const auto magic = cursor.Number<uint32_t>(), version = cursor.Number<uint32_t>();
  if (magic != kMagic) return Damaged("expected a GGUF file, which begins with \"GGUF\"");
  if (version != 2 && version != 3) {
    const bool is_swapped = version > 0xffff;
    return absl::UnimplementedError(
        absl::StrCat("expected GGUF version 2 or 3, got ",
                     is_swapped ? "a big-endian file" : absl::StrCat("version ", version)));
  }
  Header header;
  header.n_tensors = cursor.Number<uint64_t>();
  header.n_keys = cursor.Number<uint64_t>();
  return header;
}

absl::Status ReadMetadata(uint64_t n_keys, Cursor& cursor, kernels::Attrs& metadata) {
  std::set<std::string> keys;
  for (uint64_t i = 0; i < n_keys && !cursor.ran_out(); ++i) {
    const std::string key = cursor.Text();
    const auto type = cursor.Number<uint32_t>();
    const std::string place = absl::StrCat("key ", Quoted(key));
    absl::StatusOr<Value> value = ReadValue(type, cursor);
    if (cursor.ran_out()) break;
    if (!value.ok()) return InContext(place, value.status());
    if (FirstInvalidUtf8(key)) return Damaged(place, ": not UTF-8");
    if (!keys.insert(key).second) return Damaged(place, ": given twice");
    metadata.Set(key, *std::move(value));
  }
  return absl::OkStatus();
}

kernels::Shape Reversed(const std::vector<int64_t>& d) {
  switch (d.size()) {
    case 1:
      return {d[0]};
    case 2:
      return {d[1], d[0]};
    case 3:
      return {d[2], d[1], d[0]};
    default:
      return {d[3], d[2], d[1], d[0]};
  }
}

// A tensor whose bytes are not looked up yet.
struct Info {
  std::string name;
  GgufTensor tensor;
  uint64_t begin, end;  // in the data
};

absl::StatusOr<Info> ReadInfo(Cursor& cursor, uint64_t alignment) {
  Info info = {};
  info.name = cursor.Text();
  const auto n_dims = cursor.Number<uint32_t>();
  if (cursor.ran_out()) return info;
  const auto wrong = [&](const auto&... what) {
    return Damaged("tensor ", Quoted(info.name), ": ", what...);
  };
  if (FirstInvalidUtf8(info.name)) return wrong("not UTF-8");
  if (n_dims < 1 || n_dims > kernels::Shape::kMaxRank) {
    return wrong("expected 1 to ", kernels::Shape::kMaxRank, " dimensions, got ", n_dims);
  }
  std::vector<int64_t> dims;
  int64_t elements = 1;
  for (uint32_t i = 0; i < n_dims; ++i) {
    const auto dim = cursor.Number<uint64_t>();
    if (dim > INT64_MAX || __builtin_mul_overflow(elements, dim, &elements) ||
        elements > INT64_MAX / 8) {
      return wrong("has more elements than any file can hold");
    }
    dims.push_back(static_cast<int64_t>(dim));
  }
  const auto type = cursor.Number<uint32_t>();
  info.begin = cursor.Number<uint64_t>();
  if (cursor.ran_out()) return info;
  info.tensor.type = FindBlockType(type);
  info.tensor.shape = Reversed(dims);
  if (info.tensor.type == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        "tensor ", Quoted(info.name), ": expected type ",
        absl::StrJoin(
            BlockTypes(), ", ",
            [](std::string* out, const BlockType& t) { absl::StrAppend(out, AbslView(t.name)); }),
        ", got number ", type));
  }
  const BlockType& block = *info.tensor.type;
  if (dims[0] % block.elements != 0) {
    return wrong("rows of ", dims[0], " elements are not whole blocks of ", AbslView(block.name));
  }
  if (info.begin % alignment != 0) {
    return wrong("begins at byte ", info.begin, " of the data, no multiple of the alignment ",
                 alignment);
  }
  const auto bytes = static_cast<uint64_t>(elements / block.elements) * block.bytes;
  if (__builtin_add_overflow(info.begin, bytes, &info.end)) return wrong("ends beyond any file");
  return info;
}

absl::StatusOr<uint64_t> ReadAlignment(const kernels::Attrs& metadata) {
  constexpr int64_t kUsual = 32, kMost = 1 << 20;
  kernels::AttrReader reader(metadata);
  const auto alignment = static_cast<uint64_t>(reader.IntOr(kAlignment, kUsual, 1, kMost));
  if (reader.ok() && !std::has_single_bit(alignment)) {
    reader.Fail(kAlignment, absl::StrCat("expected a power of two, got ", alignment));
  }
  if (!reader.ok()) return reader.status();
  return alignment;
}

// Checks that tensors lie in the data, apart, and adds them.
absl::Status Place(std::vector<Info>& infos, std::span<const std::byte> data,
                   GgufTensors& tensors) {
  std::ranges::sort(infos, {}, [](const Info& info) { return std::pair(info.begin, info.end); });
  absl::Status problems;
  uint64_t filled = 0;
  for (Info& info : infos) {
    const std::string place = absl::StrCat("tensor ", Quoted(info.name), ": ");
    if (info.end > data.size()) {
      AddProblems(problems, Damaged(place, "ends at byte ", info.end, " of the data, but the file ",
                                    "holds ", data.size(), ": truncated?"));
      continue;
    }
    if (info.begin < filled) {
      AddProblems(problems, Damaged(place, "overlaps the tensor before it"));
    }
    filled = std::max(filled, info.end);
    info.tensor.bytes = data.subspan(info.begin, info.end - info.begin);
    if (!tensors.emplace(std::move(info.name), info.tensor).second) {
      AddProblems(problems, Damaged(place, "given twice"));
    }
  }
  return problems;
}

// A part's place in its set; a file alone is one part.
struct Split {
  int64_t no, count, tensors;
};
absl::StatusOr<Split> ReadSplit(const kernels::Attrs& metadata) {
  constexpr int64_t kMostParts = 1000;
  kernels::AttrReader reader(metadata);
  const int64_t count = reader.IntOr("split.count", 1, 0, kMostParts);
  Split split = {0, count, 0};
  if (count > 1) {
    split.no = reader.Int("split.no", 0, count - 1);
    split.tensors = reader.Int("split.tensors.count", 0, INT32_MAX);
  }
  if (!reader.ok()) return reader.status();
  return split;
}

absl::Status CheckSplit(const kernels::Attrs& metadata, const Split& expected,
                        const std::string& name) {
  ASSIGN_OR_RETURN(const Split split, ReadSplit(metadata));
  const auto text = [](const Split& s) {
    return absl::StrCat("part ", s.no + 1, " of ", s.count, " with ", s.tensors, " tensors in all");
  };
  if (text(split) == text(expected)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected ", text(expected), ", but it is ", text(split)));
}

std::string PartEnding(int64_t number, int64_t count) {
  return absl::StrFormat("-%05d-of-%05d.gguf", number, count);
}

absl::Status Read(std::span<const std::byte> file, kernels::Attrs& metadata, GgufTensors& tensors) {
  Cursor cursor(file.first(std::min<size_t>(file.size(), kMaxMetadataBytes)));
  const auto too_long = [&](const char* what) {
    return file.size() > kMaxMetadataBytes
               ? Damaged(what, " do not end within the first ", kMaxMetadataBytes, " bytes")
               : Damaged(what, " go beyond the file's ", file.size(), " bytes: truncated?");
  };
  ASSIGN_OR_RETURN(const Header header, ReadHeader(cursor));
  RETURN_IF_ERROR(ReadMetadata(header.n_keys, cursor, metadata));
  if (cursor.ran_out()) return too_long("metadata");
  ASSIGN_OR_RETURN(const uint64_t alignment, ReadAlignment(metadata));
  std::vector<Info> infos;
  absl::Status problems;
  for (uint64_t i = 0; i < header.n_tensors; ++i) {
    absl::StatusOr<Info> info = ReadInfo(cursor, alignment);
    if (cursor.ran_out()) return too_long("names and sizes of tensors");
    // After another error the next tensor's place is unknown.
    if (!info.ok() && !absl::IsUnimplemented(info.status())) return info.status();
    AddProblems(problems, info.status());
    if (info.ok()) infos.push_back(*std::move(info));
  }
  const size_t data = (cursor.position() + alignment - 1) / alignment * alignment;
  AddProblems(problems, Place(infos, file.subspan(std::min(data, file.size())), tensors));
  return problems;
}

}  // namespace

absl::Status GgufFile::Open(const std::string& path, GgufFile& file) {
  RETURN_IF_ERROR(file.OpenPart(path, file.metadata_));
  return InContext(path, file.OpenOtherParts(path));
}

absl::Status GgufFile::OpenPart(const std::string& path, kernels::Attrs& metadata) {
  ASSIGN_OR_RETURN(const MappedFile map, MappedFile::Open(path));
  parts_.push_back({std::filesystem::path(path).filename().string(), map});
  return InContext(path, Read({map.data(), map.size()}, metadata, tensors_));
}

absl::Status GgufFile::OpenOtherParts(const std::string& path) {
  ASSIGN_OR_RETURN(const Split first, ReadSplit(metadata_));
  if (first.count <= 1) return absl::OkStatus();
  const std::string ending = PartEnding(1, first.count);
  if (first.no != 0) {
    return absl::InvalidArgumentError(absl::StrCat("is part ", first.no + 1, " of ", first.count,
                                                   " of a model: name the first, which ends with ",
                                                   ending));
  }
  if (!path.ends_with(ending)) {
    return absl::InvalidArgumentError(absl::StrCat("is the first of ", first.count,
                                                   " parts of a model: expected a name that ends ",
                                                   "with ", ending));
  }
  absl::Status problems;
  for (int64_t i = 1; i < first.count; ++i) {
    kernels::Attrs metadata;
    absl::Status status = OpenPart(
        path.substr(0, path.size() - ending.size()) + PartEnding(i + 1, first.count), metadata);
    if (status.ok())
      status = CheckSplit(metadata, {i, first.count, first.tensors}, parts_.back().name);
    AddProblems(problems, InContext(absl::StrCat("part ", i + 1, " of ", first.count), status));
  }
  if (problems.ok() && std::ssize(tensors_) != first.tensors) {
    return absl::InvalidArgumentError(absl::StrCat("split.tensors.count is ", first.tensors,
                                                   ", but the parts have ", tensors_.size(),
                                                   " tensors"));
  }
  return problems;
}

const std::string& GgufFile::PartThatHolds(std::span<const std::byte> bytes) const {
  const auto holds = [&](const Part& part) {
    const std::less_equal<> before;
    return before(part.map.data(), bytes.data()) &&
           before(bytes.data(), part.map.data() + part.map.size());
  };
  const auto found = std::ranges::find_if(parts_, holds);
  return found == parts_.end() ? parts_.front().name : found->name;
}

absl::Status GgufFile::CheckWhole() const {
  absl::Status problems;
  for (const Part& part : parts_) AddProblems(problems, part.map.CheckUnchanged());
  return problems;
}

bool IsGguf(const std::string& path) {
  std::error_code error;
  return path.ends_with(".gguf") || std::filesystem::is_regular_file(path, error);
}

std::string GgufModelName(const std::string& path) {
  std::string name = std::filesystem::path(path).stem().string();
  constexpr std::string_view kForm = "-00001-of-00001";
  const size_t begin = name.size() - std::min(name.size(), kForm.size());
  std::string form = name.substr(begin);
  for (char& c : form) c = '0' <= c && c <= '9' ? '0' : c;
  if (begin > 0 && form == "-00000-of-00000") name.resize(begin);
  return name;
}

}  // namespace ovq::model
