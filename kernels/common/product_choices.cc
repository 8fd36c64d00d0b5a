#include "kernels/common/product_choices.h"

#include <algorithm>
#include <mutex>

#include "absl/strings/str_cat.h"

namespace ovq::kernels {
namespace {

struct Choices {
  std::mutex mutex;
  std::vector<ProductChoice> list;
};
Choices& All() {
  static auto* all = new Choices;
  return *all;
}

}  // namespace

std::string ProductChoice::ToString() const {
  return absl::StrCat(count, count == 1 ? " product of " : " products of ", in, " inputs and ", out,
                      " outputs, weights in ", weights, ": ", product, ": ", detail);
}

void NoteProduct(const ProductChoice& choice) {
  const std::lock_guard lock(All().mutex);
  const auto same = std::ranges::find_if(All().list, [&](const ProductChoice& other) {
    return other.in == choice.in && other.out == choice.out && other.weights == choice.weights &&
           other.product == choice.product && other.detail == choice.detail;
  });
  if (same == All().list.end()) {
    All().list.push_back(choice);
  } else {
    ++same->count;
  }
}

std::vector<ProductChoice> ProductChoices() {
  const std::lock_guard lock(All().mutex);
  return All().list;
}

}  // namespace ovq::kernels
