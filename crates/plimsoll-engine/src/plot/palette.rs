//! Colours, hatchings and the style sheet. The colours are Okabe and Ito's and Tol's, chosen to stay apart for the
//! common kinds of colour blindness; hatching tells apart what they do not.

use plimsoll_timeline::Category;

/// From the bottom of the stack to its top: what stays for the whole step below what comes and goes.
pub(super) const STACK: [Category; Category::ALL.len()] = [
    Category::Context,
    Category::Parameters,
    Category::OptimizerStates,
    Category::KvCache,
    Category::EngineBuffers,
    Category::Gradients,
    Category::Communication,
    Category::Inputs,
    Category::Activations,
    Category::LogitsAndLoss,
    Category::Workspace,
    Category::Unknown,
];

/// Fill and the hatching drawn over it, as a path in a tile of 8 x 8.
pub(super) const fn look(category: Category) -> (&'static str, &'static str) {
    const RISING: &str = "M-2 2L2-2M0 8L8 0M6 10L10 6";
    const FALLING: &str = "M-2 6L2 10M0 0L8 8M6-2L10 2";
    const LEVEL: &str = "M0 2H8M0 6H8";
    const UPRIGHT: &str = "M2 0V8M6 0V8";
    const GRID: &str = "M0 4H8M4 0V8";
    const DIAMONDS: &str = "M0 0L8 8M0 8L8 0";
    const DASHES: &str = "M1 2H4M5 6H8";
    const DOTS: &str = "M1 2H3M5 6H7";
    match category {
        Category::Context => ("#6b7280", DIAMONDS),
        Category::Parameters => ("#2b7bba", ""),
        Category::OptimizerStates => ("#1b9e77", FALLING),
        Category::KvCache => ("#d9c300", LEVEL),
        Category::EngineBuffers => ("#8c4a6b", UPRIGHT),
        Category::Gradients => ("#e69f00", RISING),
        Category::Communication => ("#7fc4ea", UPRIGHT),
        Category::Inputs => ("#44aa99", DASHES),
        Category::Activations => ("#d8602c", DOTS),
        Category::LogitsAndLoss => ("#cc79a7", LEVEL),
        Category::Workspace => ("#a3a9b3", GRID),
        Category::Unknown => ("#c9ccd1", FALLING),
        // `Category` may grow; a new one is told apart by its label until it gets a look of its own.
        _ => ("#999999", RISING),
    }
}

/// Identifier of a category's pattern.
pub(super) fn pattern(category: Category) -> String {
    format!("c{}", category as usize)
}

/// Light first; the dark scheme overrides by class. No variables: renderers other than browsers lack them.
pub(super) const STYLE: &str = "\
text{font-family:'Noto Sans',system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;font-size:12px;fill:#1f2933}\
.title{font-size:18px;font-weight:700}.sub{font-size:13px;fill:#52606d}.small{font-size:11px;fill:#52606d}\
.strong{font-weight:700}.end{text-anchor:end}.mid{text-anchor:middle}\
.paper{fill:#ffffff}.band{fill:#f3f5f7}.grid{stroke:#d5dbe1;fill:none}.axis{stroke:#7b8794;fill:none}\
.edge{stroke:#ffffff;stroke-width:.8;fill:none}.hatch{stroke:#ffffff;stroke-opacity:.5;fill:none}\
.load{stroke:#12263a;stroke-width:3;fill:none}.mark{fill:#ffffff;stroke:#12263a;stroke-width:3}\
.loadtext{font-weight:700;fill:#12263a}.over{fill:#b42318;fill-opacity:.08}.bad{fill:#b42318}\
.reserved{stroke:#3e4c59;stroke-width:1.6;stroke-dasharray:6 4;fill:none}\
.peak{fill:#ffffff;stroke:#12263a;stroke-width:2}.leader{stroke:#12263a;fill:none}\
.box{fill:#ffffff;fill-opacity:.93;stroke:#9aa5b1}.slack{fill:#e4e7eb}.slackline{stroke:#7b8794;fill:none}\
.room{fill:none;stroke:#9aa5b1;stroke-dasharray:3 3}.on{fill:#ffffff;stroke:#000000;stroke-opacity:.3}\
.onlight{fill:#12263a;stroke:#ffffff;stroke-opacity:.6}.on,.onlight{stroke-width:2px;paint-order:stroke}\
@media (prefers-color-scheme:dark){\
text{fill:#e6ebf0}.sub,.small{fill:#a9b4c0}.paper{fill:#12181f}.band{fill:#1a222b}.grid{stroke:#2d3843}\
.axis{stroke:#7b8794}.edge{stroke:#12181f}.hatch{stroke:#12181f;stroke-opacity:.45}\
.load{stroke:#f5f7fa}.mark{fill:#12181f;stroke:#f5f7fa}.loadtext{fill:#f5f7fa}.over{fill:#ff8a7a;fill-opacity:.12}\
.bad{fill:#ff9c8f}.reserved{stroke:#cbd2d9}.peak{fill:#12181f;stroke:#f5f7fa}.leader{stroke:#f5f7fa}\
.box{fill:#12181f;stroke:#616e7c}.slack{fill:#323f4b}.room{stroke:#616e7c}.on{fill:#ffffff}\
.onlight{fill:#12181f}}";

/// Whether text on this category's fill is dark.
pub(super) const fn is_light(category: Category) -> bool {
    matches!(
        category,
        Category::KvCache
            | Category::Gradients
            | Category::Communication
            | Category::Workspace
            | Category::Unknown
            | Category::LogitsAndLoss
    )
}
