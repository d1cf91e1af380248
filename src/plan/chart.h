// Speed-up against nodes, as a drawing that needs nothing else: for light and dark, phone and desk.
#pragma once

#include <string>
#include <vector>

#include "plan/cost.h"

namespace dgc::plan {

/// One drawing: predictions of several methods and numbers of nodes at one bandwidth.
struct Panel {
  std::string title;
  std::vector<Prediction> predictions;
};

/// One panel below the other. Axes are logarithmic where there are more than 128 nodes.
std::string chart_svg(const std::string& title, const std::string& note,
                      const std::vector<Panel>& panels);
/// The same as a page, with the figures as tables.
std::string chart_html(const std::string& title, const std::string& note,
                       const std::vector<Panel>& panels);

}  // namespace dgc::plan
