// Which panels of 16 keys a block of queries needs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "panels.h"

namespace sprout {

// Rows of a block: `group` query heads of each query in [start, stop) of the sorted order, padded to whole tiles.
struct Block {
    int64_t start, stop, group;

    int64_t rows() const { return (stop - start) * group; }
    int64_t padded() const { return round_up(rows(), kRows); }
};

// A panel that a block needs: tiles of kRows rows outside [begin, end) see none of its keys, and only if it is not
// `full` does any row miss any key.
struct Needed {
    int64_t panel, begin, end;
    bool full;
};

// Key j is seen by the sorted queries [first[j], last[j]).
class Visibility {
  public:
    Visibility(const int32_t* first, const int32_t* last, int64_t keys)
        : panels((keys + kPanel - 1) / kPanel), first_(panels * kPanel), last_(panels * kPanel), bounds_(panels) {
        std::copy_n(first, keys, first_.begin());
        std::copy_n(last, keys, last_.begin());
        for (int64_t p = 0; p < panels; ++p) {
            const auto from = std::minmax_element(&first_[p * kPanel], &first_[p * kPanel] + kPanel);
            const auto to = std::minmax_element(&last_[p * kPanel], &last_[p * kPanel] + kPanel);
            bounds_[p] = {*from.first, *from.second, *to.first, *to.second};
        }
    }

    void needed(const Block& block, std::vector<Needed>& out) const {
        out.clear();
        for (int64_t p = 0; p < panels; ++p) {
            const Bounds& b = bounds_[p];
            if (b.least_first >= block.stop || b.most_last <= block.start) continue;
            const bool full = b.most_first <= block.start && b.least_last >= block.stop;
            if (!full && !any(p, block)) continue;
            const int64_t begin = std::max<int64_t>(b.least_first - block.start, 0) * block.group / kRows;
            const int64_t rows = (std::min<int64_t>(b.most_last, block.stop) - block.start) * block.group;
            out.push_back({p, begin, (rows + kRows - 1) / kRows, full});
        }
    }

    // Scores of a panel's first or second eight keys for one query, -inf where it does not see them.
    F32x8 masked(F32x8 scores, int64_t panel, int64_t half, int32_t query) const {
        I32x8 first, last;
        std::memcpy(&first, &first_[panel * kPanel + half], sizeof first);
        std::memcpy(&last, &last_[panel * kPanel + half], sizeof last);
        return (first <= query) & (query < last) ? scores : splat8(-std::numeric_limits<float>::infinity());
    }

    const int64_t panels;

  private:
    struct Bounds {
        int32_t least_first, most_first, least_last, most_last;
    };

    bool any(int64_t panel, const Block& block) const {
        for (int64_t j = panel * kPanel; j < (panel + 1) * kPanel; ++j)
            if (first_[j] < block.stop && last_[j] > block.start && first_[j] < last_[j]) return true;
        return false;
    }

    std::vector<int32_t> first_, last_;
    std::vector<Bounds> bounds_;
};

}  // namespace sprout
