#include "server/disk/text_order.h"

#include <algorithm>

namespace ovq::disk {

uint64_t TextOrder::Begin(const std::string& id) {
  std::lock_guard lock(mutex_);
  ++by_id_[id].pending;
  return ++number_;
}

bool TextOrder::End(const std::string& id, uint64_t number) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  Session& session = found->second;
  const bool in_order = number > session.last;
  session.last = std::max(session.last, number);
  if (--session.pending == 0) by_id_.erase(found);
  return in_order;
}

}  // namespace ovq::disk
