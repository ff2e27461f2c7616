// Show all pipelines, or the one that the address names.

import { showOverview } from "./overview.js";
import { showPipeline } from "./pipeline.js";

const address = new URLSearchParams(location.search);
const dag = address.get("dag");
if (dag) showPipeline(dag, address);
else showOverview();
