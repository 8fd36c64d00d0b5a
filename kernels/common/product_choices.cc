#include "kernels/common/product_choices.h"

#include <mutex>
#include <utility>

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

void NoteProduct(ProductChoice choice) {
  const std::lock_guard lock(All().mutex);
  for (ProductChoice& known : All().list) {
    choice.count = known.count;
    if (known != choice) continue;
    ++known.count;
    return;
  }
  choice.count = 1;
  All().list.push_back(std::move(choice));
}

std::vector<ProductChoice> ProductChoices() {
  const std::lock_guard lock(All().mutex);
  return All().list;
}

}  // namespace ovq::kernels
