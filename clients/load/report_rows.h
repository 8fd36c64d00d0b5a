// What the text and the HTML report both list.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "clients/load/result.h"

namespace ovq::load {

// In milliseconds; those that have samples.
std::vector<std::pair<std::string, Summary>> LatencyRows(const Level& level);
// Everything else: counts, throughputs, what went wrong.
std::vector<std::pair<std::string, std::string>> FactRows(const Level& level);

}  // namespace ovq::load
