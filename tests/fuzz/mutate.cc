#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/crc32c.h"
#include "base/sha256.h"

namespace ovq::fuzz {
namespace {

// Place of a field in an image's state, and the values that its numbers may be compared with.
struct Place {
  const kernels::StateField* field;
  size_t offset;
  int64_t live;
};

Place AnyField(const model::StateLayout& layout, Random& random,
               const engine::SessionImage& image) {
  const std::vector<kernels::StateExtent> extents =
      layout.live_extents_at(image.position, image.slot_cap);
  const auto i = static_cast<int>(random.Upto(std::ssize(layout.mixers()) - 1));
  const kernels::MixerState& mixer = layout.mixers()[i];
  const kernels::LayerState& where = layout.layer(i);
  const auto head = static_cast<int>(random.Upto(mixer.growth.parts() - 1));
  const int64_t live =
      mixer.growth.exists() ? mixer.growth.LiveAt(image.position, image.slot_cap, head) : 0;
  const bool grown = live > 0 && (mixer.fixed.list().empty() || random.OneIn(2));
  const kernels::StateFields& fields = grown ? mixer.block : mixer.fixed;
  if (fields.list().empty()) return {};
  // Picks a field regardless of its size, with a preference for indices.
  auto f = static_cast<int>(random.Upto(std::ssize(fields.list()) - 1));
  for (int more = 0; more < 4 && fields.list()[f].dtype != kernels::DType::kI32; ++more) {
    f = static_cast<int>(random.Upto(std::ssize(fields.list()) - 1));
  }
  if (grown && mixer.growth.parts() > 1)
    f = head * mixer.fields_per_head() + f % mixer.fields_per_head();
  const size_t base = grown ? where.FieldOffset(mixer, f, random.Upto(kernels::NumBlocks(live) - 1))
                            : where.fixed_offset + fields.offset(f);
  size_t packed = 0;
  for (const kernels::StateExtent& extent : extents) {
    if (base - extent.offset < extent.bytes) {
      return {&fields.list()[f], packed + base - extent.offset, live};
    }
    packed += extent.bytes;
  }
  return {};
}

uint32_t AnyWord(const Place& place, Random& random) {
  const auto live = static_cast<int32_t>(place.live);
  if (place.field->dtype == kernels::DType::kI32 || place.field->dtype == kernels::DType::kU32) {
    const std::array<int32_t, 13> numbers = {-1,
                                             0,
                                             1,
                                             2,
                                             live - 1,
                                             live,
                                             live + 1,
                                             live + 64,
                                             std::numeric_limits<int32_t>::max(),
                                             std::numeric_limits<int32_t>::min(),
                                             static_cast<int32_t>(random.Upto(live + 300)),
                                             static_cast<int32_t>(random.Upto(4096)),
                                             static_cast<int32_t>(random.Upto(1 << 30))};
    return static_cast<uint32_t>(random.Any(numbers));
  }
  const std::array<float, 10> numbers = {
      std::nanf(""), HUGE_VALF, -HUGE_VALF, -1,    0,
      3.3e38f,       -3.3e38f,  1e-40f,     1e19f, static_cast<float>(random.Upto(1000)) / 100};
  const auto word = std::bit_cast<uint32_t>(random.Any(numbers));
  return place.field->dtype == kernels::DType::kBF16 ? word >> 16 : word;
}

void SetNumber(const model::StateLayout& layout, Random& random, engine::SessionImage& image) {
  const Place place = AnyField(layout, random, image);
  if (place.field == nullptr) return;
  const size_t bytes = kernels::DTypeBytes(place.field->dtype);
  const int64_t n = place.field->shape.elements();
  if (n == 0) return;
  const uint32_t word = AnyWord(place, random);
  // Changes one element, or all from there on.
  const int64_t first = random.Upto(n - 1), end = random.OneIn(8) ? n : first + 1;
  for (int64_t i = first; i < end; ++i) {
    std::memcpy(image.state.data() + place.offset + static_cast<size_t>(i) * bytes, &word, bytes);
  }
}

void CopyRun(Random& random, std::string& bytes) {
  const auto words = static_cast<int64_t>(bytes.size() / 4);
  if (words == 0) return;
  const int64_t from = random.Upto(words - 1), to = random.Upto(words - 1),
                n = std::min(random.Upto(300), words - std::max(from, to));
  std::memmove(bytes.data() + to * 4, bytes.data() + from * 4, static_cast<size_t>(n) * 4);
}

void FlipBits(Random& random, std::string& bytes) {
  if (bytes.empty()) return;
  for (int64_t n = random.Upto(8); n >= 0; --n) {
    bytes[static_cast<size_t>(random.Upto(std::ssize(bytes) - 1))] ^=
        static_cast<char>(1 << random.Upto(7));
  }
}

// Changes the position or the cap, with state and tokens of the matching size.
void MoveElsewhere(const model::StateLayout& layout, Random& random, engine::SessionImage& image) {
  if (random.OneIn(3) && image.slot_cap > 0) {
    image.slot_cap =
        static_cast<int32_t>(std::max<int64_t>(kernels::kMinSlotCap, random.Upto(100)));
  } else {
    const std::array<int64_t, 6> positions = {
        image.position + 1,       std::max<int64_t>(0, image.position - 1),
        image.position / 64 * 64, image.position + random.Upto(200),
        random.Upto(900),         (int64_t{1} << 44) + random.Upto(900)};
    image.position = random.Any(positions);
    if (layout.has_unbounded() || image.position > 4000) image.tokens.reset();
    if (layout.has_unbounded()) image.position %= 4000;
  }
  image.state.resize(layout.live_bytes_at(image.position, image.slot_cap));
  if (image.tokens) image.tokens->resize(static_cast<size_t>(image.length()), 1);
  if (image.tokens && image.pending) image.tokens->back() = *image.pending;
  std::erase_if(image.turn_ends, [&](int64_t end) { return end > image.length(); });
}

void ChangeHead(int64_t vocab_size, Random& random, engine::SessionImage& image) {
  const auto token = static_cast<int32_t>(random.Any(std::array<int64_t, 4>{
      -1, vocab_size, std::numeric_limits<int32_t>::max(), random.Upto(vocab_size - 1)}));
  switch (random.Upto(5)) {
    case 0:
      image.pending = token;
      if (image.tokens && !image.tokens->empty()) image.tokens->back() = token;
      break;
    case 1:
      if (image.tokens && !image.tokens->empty()) {
        image.tokens->at(static_cast<size_t>(random.Upto(std::ssize(*image.tokens) - 1))) = token;
      }
      break;
    case 2:
      image.turn_ends.push_back(random.Upto(2 * image.length()));
      break;
    case 3:
      image.cache_policy += "?";
      break;
    case 4:
      ++image.layout_fingerprint;
      break;
    case 5:
      image.slot_cap = static_cast<int32_t>(random.Upto(1 << 20)) - 2;
      break;
  }
}

void Put32(std::string& file, size_t at, uint32_t value) {
  std::memcpy(file.data() + at, &value, sizeof value);
}

}  // namespace

void Seal(std::string& file) {
  for (size_t at = 12; at + 12 <= file.size();) {
    uint64_t length;
    std::memcpy(&length, file.data() + at + 4, sizeof length);
    if (length > file.size() - at - 12 || file.size() - at - 12 - length < 4) return;
    if (file.compare(at, 4, "DONE") == 0 && length == 32) {
      Sha256 digest;
      digest.Add(file.data(), at);
      file.replace(at + 12, 32, absl::HexStringToBytes(digest.Hex()));
    }
    Put32(file, at + 12 + length, Crc32c(std::string_view(file).substr(at, 12 + length)));
    at += 16 + length;
  }
}

void MutateImage(const model::StateLayout& layout, int64_t vocab_size, Random& random,
                 engine::SessionImage& image) {
  for (int64_t n = random.Upto(2); n >= 0; --n) {
    switch (random.Upto(9)) {
      case 0:
        FlipBits(random, image.state);
        break;
      case 1:
        CopyRun(random, image.state);
        break;
      case 2:
        MoveElsewhere(layout, random, image);
        break;
      default:
        SetNumber(layout, random, image);
        break;
    }
  }
  image.state_bytes = image.state.size();
  // This comes last: from here on head and state may not match.
  if (random.OneIn(16)) ChangeHead(vocab_size, random, image);
}

void MutateFile(Random& random, std::string& file) {
  switch (random.Upto(4)) {
    case 0:
      file.resize(static_cast<size_t>(random.Upto(std::ssize(file))));
      break;
    case 1:
      file.insert(static_cast<size_t>(random.Upto(std::ssize(file))),
                  std::string(static_cast<size_t>(random.Upto(40)), 'x'));
      break;
    case 2: {  // among the first bytes, which hold lengths and the head
      std::string head = file.substr(0, 256);
      FlipBits(random, head);
      file.replace(0, head.size(), head);
      break;
    }
    default:
      FlipBits(random, file);
      break;
  }
  if (!random.OneIn(4)) Seal(file);
}

}  // namespace ovq::fuzz
