#include "model/tokenizers/tokenizer_file.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/tokenizers/json_fields.h"

namespace ovq::model {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 32;

// Adds a merge given as "a b"; false if it is none. Skips a version as the library does.
bool AddMerge(const std::string& line, Bpe::MergeList& merges) {
  if (line.starts_with("#version")) return true;
  std::vector<std::string> parts = absl::StrSplit(line, ' ');
  if (parts.size() != 2) return false;
  merges.emplace_back(std::move(parts[0]), std::move(parts[1]));
  return true;
}

absl::Status InvalidMerge(std::string_view place, const std::string& line) {
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(place), ": expected two tokens with a blank between, got ", Quoted(line)));
}

absl::Status CheckUtf8(std::string_view text) {
  const std::optional<size_t> bad = FirstInvalidUtf8(text);
  return bad ? absl::DataLossError(absl::StrCat("not UTF-8 at byte ", *bad)) : absl::OkStatus();
}

// SAX handler of nlohmann's parser. Values become JSON values at their place, except inside vocab
// and merges.
class Reader {
 public:
  using Path = std::vector<std::string>;
  Reader(TokenizerFile& file, int64_t vocab_size, Path vocab_path, Path merges_path)
      : vocab{std::move(vocab_path), "an object", Json::value_t::object},
        merges{std::move(merges_path), "a list", Json::value_t::array},
        file_(file),
        vocab_size_(vocab_size) {}

  // The first error, and the parts of the file that are no JSON values.
  absl::Status status;
  struct Part {
    const Path path;
    const char* const expected;
    const Json::value_t type;
    bool found = false;
    size_t depth = 0;  // number of frames around its entries; 0: the reader is not inside
  } vocab, merges;

  bool null() { return Value(Json()); }
  bool boolean(bool value) { return Value(value); }
  bool number_integer(int64_t value) { return Value(value); }
  bool number_unsigned(uint64_t value) { return Value(value); }
  bool number_float(double value, const std::string&) { return Value(value); }
  bool binary(Json::binary_t&) { return false; }
  bool string(std::string& value);
  bool start_object(size_t) { return Start(Json::object()); }
  bool start_array(size_t) { return Start(Json::array()); }
  bool end_object() { return End(); }
  bool end_array() { return End(); }
  bool key(std::string& name);
  bool parse_error(size_t at, const std::string&, const Json::exception&) {
    return Fail(absl::DataLossError(absl::StrCat("not valid JSON at byte ", at)));
  }

 private:
  struct Frame {
    Json* json;  // null inside vocab and merges
    std::string key;
    size_t index = 0;
  };

  bool Fail(const absl::Status& why) {
    status.Update(why);
    return false;
  }
  bool Expected(std::string_view what, const Json& got) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(Place(), ": expected ", std::string(what), ", got ", JsonKindName(got))));
  }
  // The part whose path is that of the next value; null if it is another's.
  Part* PartHere();
  std::string Place() const;
  bool Value(Json value);
  bool Start(Json value);
  bool End();
  Json* Put(Json value);
  bool Id(const Json& value);
  bool MergeLine(const std::string& line);

  TokenizerFile& file_;
  const int64_t vocab_size_;
  std::vector<Frame> frames_;
  std::vector<std::string> pair_;  // the merge ["a", "b"] being read
};

Reader::Part* Reader::PartHere() {
  for (Part* part : {&vocab, &merges}) {
    if (std::ranges::equal(frames_, part->path, {}, &Frame::key)) return part;
  }
  return nullptr;
}

std::string Reader::Place() const {
  std::string path;
  for (const Frame& frame : frames_) {
    const bool is_list = frame.json != nullptr ? frame.json->is_array() : frame.key.empty();
    if (is_list) {
      absl::StrAppend(&path, "[", frame.index, "]");
    } else {
      absl::StrAppend(&path, path.empty() ? "" : ".", frame.key);
    }
  }
  return path.empty() ? "the file" : path;
}

Json* Reader::Put(Json value) {
  if (frames_.empty()) return &(file_.rest = std::move(value));
  Frame& frame = frames_.back();
  if (frame.json->is_object()) return &((*frame.json)[frame.key] = std::move(value));
  frame.json->push_back(std::move(value));
  return &frame.json->back();
}

bool Reader::Value(Json value) {
  if (vocab.depth > 0) return Id(value);
  if (merges.depth > 0) return Expected("two tokens", value);
  if (const Part* part = PartHere()) return Expected(part->expected, value);
  Put(std::move(value));
  if (!frames_.empty()) ++frames_.back().index;
  return true;
}

bool Reader::string(std::string& value) {
  if (merges.depth == 0) return Value(std::move(value));
  if (frames_.size() > merges.depth) {
    pair_.push_back(std::move(value));
    return true;
  }
  const bool read = MergeLine(value);
  ++frames_.back().index;
  return read;
}

bool Reader::Start(Json value) {
  if (frames_.size() >= kMaxDepth) {
    return Fail(absl::DataLossError(
        absl::StrCat(Place(), ": nested more than ", kMaxDepth, " levels deep")));
  }
  if (vocab.depth > 0) return Id(value);
  Json* json = nullptr;
  if (merges.depth > 0) {
    if (frames_.size() > merges.depth || !value.is_array()) return Expected("two tokens", value);
  } else if (Part* part = PartHere()) {
    if (value.type() != part->type) return Expected(part->expected, value);
    part->found = true;
    part->depth = frames_.size() + 1;
  } else {
    json = Put(std::move(value));
  }
  frames_.push_back({json, ""});
  return true;
}

bool Reader::End() {
  const size_t depth = frames_.size();
  if (merges.depth > 0 && depth > merges.depth) {
    if (pair_.size() != 2) {
      return Fail(absl::InvalidArgumentError(absl::StrCat(
          "model.merges[", file_.merges.size(), "]: expected two tokens, got ", pair_.size())));
    }
    file_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
    pair_.clear();
  }
  if (depth == vocab.depth) vocab.depth = 0;
  if (depth == merges.depth) merges.depth = 0;
  frames_.pop_back();
  if (!frames_.empty()) ++frames_.back().index;
  return true;
}

bool Reader::key(std::string& name) {
  Frame& frame = frames_.back();
  frame.key = name;
  if (frame.json == nullptr || !frame.json->contains(name)) return true;
  return Fail(absl::DataLossError(absl::StrCat(Place(), ": given twice")));
}

bool Reader::Id(const Json& value) {
  const bool is_id = value.is_number_unsigned() && value.get<uint64_t>() <= INT32_MAX;
  if (!is_id || value.get<int64_t>() >= vocab_size_) {
    const absl::Status wrong = absl::InvalidArgumentError(
        absl::StrCat(vocab.path.empty() ? "" : "model.vocab: ", Quoted(frames_.back().key),
                     ": expected an integer id below the model's vocab_size ", vocab_size_,
                     ", got ", JsonKindName(value)));
    if (!is_id) return Fail(wrong);
    file_.beyond.Update(wrong);
  }
  file_.vocab.emplace_back(std::move(frames_.back().key), value.get<int32_t>());
  return true;
}

bool Reader::MergeLine(const std::string& line) {
  return AddMerge(line, file_.merges) ||
         Fail(InvalidMerge(absl::StrCat("model.merges[", file_.merges.size(), "]"), line));
}

// Unimplemented if the type is not BPE. The type may be missing where there are merges, as in files
// from before 2020.
absl::Status CheckType(const Json& file, bool has_merges) {
  if (!file.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("expected an object, got ", JsonKindName(file)));
  }
  JsonFields fields(file, "");
  JsonFields model = fields.Child("model");
  if (!fields.status().ok() || (!model.Has("type") && has_merges)) return fields.status();
  const std::string type = model.String("type");
  if (!model.status().ok() || type == "BPE") return model.status();
  return absl::UnimplementedError(absl::StrCat("model.type: ", Quoted(type),
                                               " isn't supported; supported: BPE. The model may ",
                                               "also ship tokenizer.model"));
}

absl::Status Missing(const char* path, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": expected ", what, ", but it is missing"));
}

absl::Status Read(std::string_view text, Reader& reader) {
  RETURN_IF_ERROR(CheckUtf8(text));
  Json::sax_parse(text.begin(), text.end(), &reader);
  return reader.status;
}

}  // namespace

absl::StatusOr<TokenizerFile> TokenizerFile::Parse(std::string_view text, int64_t vocab_size) {
  TokenizerFile file;
  Reader reader(file, vocab_size, {"model", "vocab"}, {"model", "merges"});
  absl::Status status = Read(text, reader);
  // Another type may explain other errors: Unigram's vocab is a list.
  const absl::Status type = CheckType(file.rest, reader.merges.found);
  if (absl::IsUnimplemented(type) || status.ok()) status = type;
  if (!status.ok()) return status;
  if (!reader.vocab.found) return Missing("model.vocab", "an object");
  if (!reader.merges.found) return Missing("model.merges", "a list");
  return file;
}

absl::StatusOr<Vocab::Entries> ParseVocab(std::string_view text, int64_t vocab_size) {
  TokenizerFile file;
  Reader reader(file, vocab_size, {}, {"merges"});
  absl::Status status = Read(text, reader);
  status.Update(file.beyond);
  if (!status.ok()) return status;
  return std::move(file.vocab);
}

absl::StatusOr<Bpe::MergeList> ParseMerges(std::string_view text) {
  RETURN_IF_ERROR(CheckUtf8(text));
  Bpe::MergeList merges;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(AbslView(text), '\n')) {
    ++line_number;
    absl::ConsumeSuffix(&line, "\r");
    const std::string merge(line);
    if (!line.empty() && !AddMerge(merge, merges)) {
      return InvalidMerge(absl::StrCat("line ", line_number), merge);
    }
  }
  return merges;
}

}  // namespace ovq::model
