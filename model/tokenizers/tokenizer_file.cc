#include "model/tokenizers/tokenizer_file.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "model/tokenizers/absl_view.h"
#include "model/tokenizers/json_fields.h"

namespace ovq {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 32;

// SAX handler of nlohmann's parser. Values become JSON values at their place, except inside vocab
// and merges.
class Reader {
 public:
  Reader(TokenizerFile& file, int64_t vocab_size, std::vector<std::string> vocab_path,
         std::vector<std::string> merges_path)
      : file_(file),
        vocab_size_(vocab_size),
        vocab_path_(std::move(vocab_path)),
        merges_path_(std::move(merges_path)) {}

  const absl::Status& status() const { return status_; }
  bool has_vocab() const { return has_vocab_; }
  bool has_merges() const { return has_merges_; }

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

  bool Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }
  bool Expected(std::string_view what, const Json& got) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(Path(), ": expected ", std::string(what), ", got ", JsonKindName(got))));
  }
  bool At(const std::vector<std::string>& path) const;
  std::string Path() const;
  const char* VocabName() const { return vocab_path_.empty() ? "" : "model.vocab: "; }
  bool Value(Json value);
  bool Start(Json value);
  bool End();
  Json* Place(Json value);
  bool Id(const Json& value);
  bool MergeLine(const std::string& line);

  TokenizerFile& file_;
  const int64_t vocab_size_;
  const std::vector<std::string> vocab_path_, merges_path_;
  std::vector<Frame> frames_;
  absl::Status status_;
  bool has_vocab_ = false, has_merges_ = false;
  size_t vocab_depth_ = 0, merges_depth_ = 0;  // frames around their entries; 0: not inside
  std::vector<std::string> pair_;              // the merge ["a", "b"] being read
};

// Whether the next value has this path.
bool Reader::At(const std::vector<std::string>& path) const {
  return frames_.size() == path.size() &&
         std::ranges::equal(frames_, path, {}, [](const Frame& frame) { return frame.key; });
}

std::string Reader::Path() const {
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

Json* Reader::Place(Json value) {
  if (frames_.empty()) return &(file_.rest = std::move(value));
  Frame& frame = frames_.back();
  if (frame.json->is_object()) return &((*frame.json)[frame.key] = std::move(value));
  frame.json->push_back(std::move(value));
  return &frame.json->back();
}

bool Reader::Value(Json value) {
  if (vocab_depth_ > 0) return Id(value);
  if (merges_depth_ > 0) return Expected("two tokens", value);
  if (At(vocab_path_)) return Expected("an object", value);
  if (At(merges_path_)) return Expected("a list", value);
  Place(std::move(value));
  if (!frames_.empty()) ++frames_.back().index;
  return true;
}

bool Reader::string(std::string& value) {
  if (merges_depth_ == 0) return Value(std::move(value));
  if (frames_.size() > merges_depth_) {
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
        absl::StrCat(Path(), ": nested more than ", kMaxDepth, " levels deep")));
  }
  if (vocab_depth_ > 0) return Id(value);
  if (merges_depth_ > 0) {
    if (frames_.size() > merges_depth_ || !value.is_array()) return Expected("two tokens", value);
    frames_.push_back({nullptr, ""});
    return true;
  }
  if (At(vocab_path_)) {
    if (!value.is_object()) return Expected("an object", value);
    has_vocab_ = true;
    frames_.push_back({nullptr, ""});
    vocab_depth_ = frames_.size();
    return true;
  }
  if (At(merges_path_)) {
    if (!value.is_array()) return Expected("a list", value);
    has_merges_ = true;
    frames_.push_back({nullptr, ""});
    merges_depth_ = frames_.size();
    return true;
  }
  frames_.push_back({Place(std::move(value)), ""});
  return true;
}

bool Reader::End() {
  const size_t depth = frames_.size();
  if (merges_depth_ > 0 && depth > merges_depth_) {
    if (pair_.size() != 2) {
      return Fail(absl::InvalidArgumentError(absl::StrCat(
          "model.merges[", file_.merges.size(), "]: expected two tokens, got ", pair_.size())));
    }
    file_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
    pair_.clear();
  }
  if (depth == vocab_depth_) vocab_depth_ = 0;
  if (depth == merges_depth_) merges_depth_ = 0;
  frames_.pop_back();
  if (!frames_.empty()) ++frames_.back().index;
  return true;
}

bool Reader::key(std::string& name) {
  Frame& frame = frames_.back();
  frame.key = name;
  if (frame.json == nullptr || !frame.json->contains(name)) return true;
  return Fail(absl::DataLossError(absl::StrCat(Path(), ": given twice")));
}

bool Reader::Id(const Json& value) {
  const bool is_id = value.is_number_unsigned() && value.get<uint64_t>() <= INT32_MAX;
  if (!is_id || value.get<int64_t>() >= vocab_size_) {
    const absl::Status wrong = absl::InvalidArgumentError(
        absl::StrCat(VocabName(), Quoted(frames_.back().key),
                     ": expected an integer id below the model's vocab_size ", vocab_size_,
                     ", got ", JsonKindName(value)));
    if (!is_id) return Fail(wrong);
    file_.beyond.Update(wrong);
  }
  file_.vocab.emplace_back(std::move(frames_.back().key), value.get<int32_t>());
  return true;
}

bool Reader::MergeLine(const std::string& line) {
  if (line.starts_with("#version")) return true;  // skipped as in the library
  std::vector<std::string> parts = absl::StrSplit(line, ' ');
  if (parts.size() != 2) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("model.merges[", file_.merges.size(),
                     "]: expected two tokens with a blank between, got ", Quoted(line))));
  }
  file_.merges.emplace_back(std::move(parts[0]), std::move(parts[1]));
  return true;
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
  if (const std::optional<size_t> bad = FirstInvalidUtf8(text)) {
    return absl::DataLossError(absl::StrCat("not UTF-8 at byte ", *bad));
  }
  Json::sax_parse(text.begin(), text.end(), &reader);
  return reader.status();
}

}  // namespace

absl::StatusOr<TokenizerFile> TokenizerFile::Parse(std::string_view text, int64_t vocab_size) {
  TokenizerFile file;
  Reader reader(file, vocab_size, {"model", "vocab"}, {"model", "merges"});
  absl::Status status = Read(text, reader);
  // Another type may explain other errors: Unigram's vocab is a list.
  const absl::Status type = CheckType(file.rest, reader.has_merges());
  if (absl::IsUnimplemented(type) || status.ok()) status = type;
  if (!status.ok()) return status;
  if (!reader.has_vocab()) return Missing("model.vocab", "an object");
  if (!reader.has_merges()) return Missing("model.merges", "a list");
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
  if (const std::optional<size_t> bad = FirstInvalidUtf8(text)) {
    return absl::DataLossError(absl::StrCat("not UTF-8 at byte ", *bad));
  }
  Bpe::MergeList merges;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(AbslView(text), '\n')) {
    ++line_number;
    absl::ConsumeSuffix(&line, "\r");
    if (line.empty() || absl::StartsWith(line, "#version")) continue;
    const std::vector<std::string> parts = absl::StrSplit(line, ' ');
    if (parts.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", line_number, ": expected two tokens with a blank between, got ",
                       Quoted(std::string(line))));
    }
    merges.emplace_back(parts[0], parts[1]);
  }
  return merges;
}

}  // namespace ovq
