// What the pages use of Apache ECharts; README.md says how echarts.min.js is made of it.
import { use } from "echarts/core";
import { BarChart, CustomChart, LineChart, ScatterChart } from "echarts/charts";
import { GridComponent, LegendComponent, MarkLineComponent, TooltipComponent } from "echarts/components";
import { SVGRenderer } from "echarts/renderers";

use([BarChart, CustomChart, LineChart, ScatterChart]);
use([GridComponent, LegendComponent, MarkLineComponent, TooltipComponent, SVGRenderer]);

export { init } from "echarts/core";
