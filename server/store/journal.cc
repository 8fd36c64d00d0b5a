#include "server/store/journal.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/binary.h"
#include "base/crc32c.h"

namespace ovq::store {
namespace {

constexpr std::string_view kMagic = "OVQJRNL\n";
constexpr uint32_t kVersion = 1;
constexpr std::string_view kHeadTag = "HEAD", kEntryTag = "MOVE";

template <class... Args>
absl::Status Damaged(const Args&... what) {
  return absl::DataLossError(absl::StrCat("journal: ", what...));
}

// Reads consecutive fields; after one that is missing, all reads fail.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <class... Fields>
  void operator()(Fields&... fields) {
    (Visit(fields), ...);
  }
  // A field at the end that older files do not have: its length, and so many bytes, at least one.
  void Last(std::string& bytes) {
    if (bytes_.empty()) return;
    uint64_t size = 0;
    Visit(size);
    whole_ = whole_ && size > 0 && size == bytes_.size();
    if (whole_) bytes = std::exchange(bytes_, {});
  }
  // True if no field was missing and no bytes are left.
  bool whole() const { return whole_ && bytes_.empty(); }

 private:
  template <class T>
  void Visit(T& value) {
    whole_ = whole_ && bytes_.size() >= sizeof(T);
    if (whole_) value = Get<T>(bytes_);
  }
  void Visit(bool& value) {
    uint8_t byte = 0;
    Visit(byte);
    whole_ = whole_ && byte <= 1;
    value = byte == 1;
  }
  void Visit(std::string& text) { whole_ = whole_ && GetText(bytes_, text); }
  template <class T>
  void Visit(std::optional<T>& value) {
    bool has = false;
    Visit(has);
    if (has) Visit(value.emplace());
  }
  template <class T>
  void Visit(std::vector<T>& values) {
    uint64_t count = 0;
    Visit(count);
    whole_ = whole_ && count <= bytes_.size() / sizeof(T);
    if (!whole_) return;
    values = GetAll<T>(bytes_.substr(0, count * sizeof(T)));
    bytes_.remove_prefix(count * sizeof(T));
  }

  std::string_view bytes_;
  bool whole_ = true;
};

struct Writer {
  std::string out;

  template <class... Fields>
  void operator()(const Fields&... fields) {
    (Visit(fields), ...);
  }
  void Last(const std::string& bytes) {
    if (bytes.empty()) return;
    Put(out, static_cast<uint64_t>(bytes.size()));
    out.append(bytes);
  }
  template <class T>
  void Visit(const T& value) {
    Put(out, value);
  }
  void Visit(const bool& value) { Put(out, static_cast<uint8_t>(value)); }
  void Visit(const std::string& text) { PutText(out, text); }
  template <class T>
  void Visit(const std::optional<T>& value) {
    Visit(value.has_value());
    if (value) Visit(*value);
  }
  template <class T>
  void Visit(const std::vector<T>& values) {
    Put(out, static_cast<uint64_t>(values.size()));
    PutAll(out, values);
  }
};

// Visits the fields in the order of the file, for reading and for writing.
template <class Head, class Visit>
void VisitHead(Head& head, Visit& visit) {
  visit(head.id, head.tenant, head.cache_policy, head.fingerprint, head.layout, head.slot_cap,
        head.keeps_tokens, head.ttl_ms, head.created_unix_ms, head.version, head.snapshot_bytes);
  auto& mark = head.mark;
  visit(mark.length, mark.pending, mark.turn_ends, mark.prompt_tokens, mark.generated_tokens,
        mark.used_unix_ms);
  visit.Last(mark.unfinished);
}
template <class Entry, class Visit>
void VisitEntry(Entry& entry, Visit& visit) {
  visit(entry.begin, entry.tokens, entry.pending, entry.ends_turn, entry.prompt_tokens,
        entry.generated_tokens, entry.used_unix_ms);
  visit.Last(entry.unfinished);
}

// True if the pending token, if any, is the last of the tokens.
bool Fits(const std::vector<int32_t>& tokens, const std::optional<int32_t>& pending) {
  return !pending || tokens.empty() || tokens.back() == *pending;
}

bool Fits(const SessionMark& mark) {
  int64_t before = 0;
  for (const int64_t end : mark.turn_ends) {
    if (end <= before || end > mark.length) return false;
    before = end;
  }
  return mark.length >= (mark.pending ? 1 : 0) && mark.turn_ends.size() <= kMaxTurnEnds;
}

absl::Status DecodeHead(std::string_view payload, JournalHead& head) {
  Reader reader(payload);
  VisitHead(head, reader);
  if (!reader.whole())
    return Damaged("the head's fields do not fit its ", payload.size(), " bytes");
  if (!Fits(head.mark) || (head.version == 0 && head.mark.length != 0)) {
    return Damaged("the head says what no session is");
  }
  return absl::OkStatus();
}

absl::Status DecodeEntry(std::string_view payload, int64_t length, JournalEntry& entry) {
  Reader reader(payload);
  VisitEntry(entry, reader);
  if (!reader.whole())
    return Damaged("an entry's fields do not fit its ", payload.size(), " bytes");
  if (entry.begin < 0 || entry.begin > length || !Fits(entry.tokens, entry.pending) ||
      (entry.pending && entry.begin + std::ssize(entry.tokens) == 0)) {
    return Damaged("an entry goes on at ", entry.begin, ", expected 0 to ", length);
  }
  return absl::OkStatus();
}

// A section at the beginning of `bytes`: its size, or 0 if it goes beyond their end.
size_t SectionBytes(std::string_view bytes) {
  constexpr size_t kFrame = kSectionStartBytes + kSectionEndBytes;
  if (bytes.size() < kFrame) return 0;
  std::string_view length = bytes.substr(kEntryTag.size());
  const auto payload = Get<uint64_t>(length);
  return payload > bytes.size() - kFrame ? 0 : kFrame + static_cast<size_t>(payload);
}

bool HasRightChecksum(std::string_view section) {
  std::string_view end = section.substr(section.size() - kSectionEndBytes);
  return Get<uint32_t>(end) == Crc32c(section.substr(0, section.size() - kSectionEndBytes));
}

// True if there is a whole entry somewhere in the bytes.
bool HasEntry(std::string_view bytes) {
  for (size_t at = bytes.find(kEntryTag); at != std::string_view::npos;
       at = bytes.find(kEntryTag, at + 1)) {
    const size_t size = SectionBytes(bytes.substr(at));
    if (size > 0 && HasRightChecksum(bytes.substr(at, size))) return true;
  }
  return false;
}

// True if the rest of a journal, which is no whole section, is an entry that a crash cut off: it is
// the last one. Blocks that a crash left unwritten read as zeros, up to the end.
bool IsTorn(std::string_view journal, size_t at) {
  constexpr size_t kBlockBytes = 512;  // or a multiple of it
  const std::string_view rest = journal.substr(at);
  const size_t size = SectionBytes(rest);
  if (size == 0) return !HasEntry(rest);
  const size_t written = journal.find_last_not_of('\0') + 1;  // 0: nothing
  const size_t unwritten = (written + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  return written <= at || unwritten < at + size;
}

}  // namespace

void Apply(const JournalEntry& entry, SessionMark& mark) {
  std::erase_if(mark.turn_ends, [&](int64_t end) { return end > entry.begin; });
  mark.length = entry.begin + std::ssize(entry.tokens);
  mark.pending = entry.pending;
  const int64_t last = mark.turn_ends.empty() ? 0 : mark.turn_ends.back();
  if (entry.ends_turn && mark.length > last) mark.turn_ends.push_back(mark.length);
  if (mark.turn_ends.size() > kMaxTurnEnds) mark.turn_ends.erase(mark.turn_ends.begin());
  mark.prompt_tokens = entry.prompt_tokens;
  mark.generated_tokens = entry.generated_tokens;
  mark.used_unix_ms = entry.used_unix_ms;
  mark.unfinished = entry.unfinished;
}

SessionMark Journal::mark() const {
  SessionMark mark = head.mark;
  for (const JournalEntry& entry : entries) Apply(entry, mark);
  return mark;
}

std::string EncodeHead(const JournalHead& head) {
  Writer writer;
  VisitHead(head, writer);
  std::string out(kMagic);
  Put(out, kVersion);
  PutSection(out, kHeadTag, writer.out);
  return out;
}

std::string EncodeEntry(const JournalEntry& entry) {
  Writer writer;
  VisitEntry(entry, writer);
  std::string out;
  PutSection(out, kEntryTag, writer.out);
  return out;
}

absl::StatusOr<Journal> DecodeJournal(std::string_view bytes) {
  const size_t prelude = kMagic.size() + sizeof(kVersion);
  if (!bytes.starts_with(kMagic) || bytes.size() < prelude) {
    return Damaged("not one, it does not begin with OVQJRNL");
  }
  std::string_view rest = bytes.substr(kMagic.size());
  const auto version = Get<uint32_t>(rest);
  if (version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("journal: version ", version, ", this server reads version ", kVersion));
  }
  Journal journal;
  SessionMark mark;
  for (bool first = true; !rest.empty(); first = false) {
    const size_t at = bytes.size() - rest.size(), size = SectionBytes(rest);
    const std::string_view section = rest.substr(0, size);
    if (size == 0 || !HasRightChecksum(section)) {
      if (IsTorn(bytes, at)) break;
      return Damaged(size == 0 ? "wrong length" : "wrong checksum", " of the section at byte ", at);
    }
    const std::string_view payload =
        section.substr(kSectionStartBytes, size - kSectionStartBytes - kSectionEndBytes);
    if (section.substr(0, kEntryTag.size()) != (first ? kHeadTag : kEntryTag)) {
      return Damaged("a section of another kind at byte ", at);
    }
    absl::Status status = first ? DecodeHead(payload, journal.head)
                                : DecodeEntry(payload, mark.length, journal.entries.emplace_back());
    if (!status.ok()) return status;
    if (first) mark = journal.head.mark;
    if (!first) Apply(journal.entries.back(), mark);
    rest.remove_prefix(size);
    journal.good_bytes = bytes.size() - rest.size();
  }
  if (journal.good_bytes == 0) return Damaged("it ends in its head");
  journal.torn_bytes = rest.size();
  return journal;
}

}  // namespace ovq::store
