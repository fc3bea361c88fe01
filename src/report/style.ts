/** The page's look. Reading width for text, full width for tables and figures; numbers in columns that line up. */
import { plotVariables } from "./svg.ts";

const light = `${plotVariables.light};--line:#e4e7ec;--tint:#f5f7fa;--accent:#2563a8;--good:#0b6b5c;--good-tint:#e3f4f0;--code:#f0f2f6`;
const dark = `${plotVariables.dark};--line:#2a303a;--tint:#1c2129;--accent:#7db4ee;--good:#71d6c4;--good-tint:#15332e;--code:#20262f`;

export const styleSheet = `
:root{color-scheme:light dark;${light}}
@media (prefers-color-scheme:dark){:root{${dark}}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth;scroll-padding-top:3.2rem}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
header,nav,main,footer{max-width:62rem;margin-inline:auto;padding-inline:clamp(1rem,4vw,2rem)}
header{padding-top:clamp(1.6rem,5vw,3.2rem)}
h1{font-size:clamp(1.55rem,4.6vw,2.2rem);line-height:1.18;letter-spacing:-.018em;margin:0 0 .5rem;text-wrap:balance}
header p{color:var(--soft);margin:0 0 1.1rem;max-width:46rem}
nav{position:sticky;top:0;z-index:3;background:var(--paper);border-bottom:1px solid var(--line);display:flex;gap:1.15rem;overflow-x:auto;white-space:nowrap;padding-block:.65rem;scrollbar-width:none;font-size:.875rem}
nav::-webkit-scrollbar{display:none}
nav a{color:var(--soft);text-decoration:none}
nav a:hover{color:var(--accent)}
main{padding-block:.6rem 2rem}
h2{font-size:1.35rem;line-height:1.25;letter-spacing:-.012em;margin:2.8rem 0 .7rem}
h3{font-size:1.05rem;margin:1.9rem 0 .5rem}
p,ul{max-width:46rem;margin:.6rem 0}
ul{padding-left:1.25rem}
li{margin:.25rem 0}
a{color:var(--accent)}
code{font:.86em/1.45 ui-monospace,"SF Mono",Menlo,Consolas,monospace;background:var(--code);border-radius:4px;padding:.1em .34em;overflow-wrap:anywhere}
pre{background:var(--code);border-radius:8px;padding:.9rem 1rem;overflow-x:auto}
pre code{background:none;padding:0;overflow-wrap:normal}
.verdict{margin:1.5rem 0 1.2rem;padding:1rem 1.25rem;border-radius:10px;background:var(--tint);border-left:4px solid var(--accent);max-width:50rem}
.verdict p{margin:.35rem 0}
.verdict p:first-child{font-size:1.08rem;font-weight:600;line-height:1.45}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.8rem;margin:1.2rem 0}
.tile{background:var(--tint);border-radius:10px;padding:.8rem .95rem}
.tile .label{font-size:.8rem;color:var(--soft)}
.tile .value{font-size:1.5rem;font-weight:650;letter-spacing:-.02em;line-height:1.3;font-variant-numeric:tabular-nums}
.tile .note{font-size:.8rem;color:var(--soft);line-height:1.4}
.table{margin:1rem 0 1.4rem}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:10px}
.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:.875rem;line-height:1.4}
.cap{color:var(--soft);font-size:.82rem;line-height:1.5;margin:.5rem 0 0}
th,td{padding:.5rem .8rem;text-align:left;vertical-align:top;border-top:1px solid var(--line)}
thead th{border-top:0;background:var(--tint);color:var(--soft);font-weight:600;font-size:.8rem;vertical-align:bottom}
tbody th{font-weight:500;background:var(--paper);min-width:9.5rem}
.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
thead .num{white-space:normal}
td.na,th.na{color:var(--soft);opacity:.75}
.best{color:var(--good);background:var(--good-tint);font-weight:650}
thead th:first-child,tbody th{position:sticky;left:0;z-index:1}
figure{margin:1.6rem 0}
figure .title{font-weight:600;margin-bottom:.55rem}
figure svg{display:block;max-width:100%;height:auto}
figure .narrow{display:none}
figcaption{color:var(--soft);font-size:.85rem;max-width:46rem;margin-top:.5rem}
details{margin:1rem 0;border:1px solid var(--line);border-radius:10px;padding:.6rem .9rem}
summary{cursor:pointer;font-weight:600}
details .scroll{border-radius:6px}
footer{color:var(--soft);font-size:.82rem;border-top:1px solid var(--line);padding-block:1.2rem 2.5rem}
@media (max-width:620px){
body{font-size:15.5px}
figure .wide{display:none}
figure .narrow{display:block}
tbody th{min-width:8.4rem;max-width:10.5rem;overflow-wrap:anywhere}
th,td{padding:.45rem .6rem}
}
@page{size:A4;margin:14mm 13mm 15mm;@bottom-right{content:counter(page) " / " counter(pages);font:7.6pt system-ui,sans-serif;color:#5b6472}}
@media print{
:root{${light};color-scheme:light}
html{font-size:13px}
body{font-size:9.5pt}
nav{display:none}
header,main,footer{max-width:none;padding-inline:0}
header{padding-top:0}
h2,h3,summary,figure .title{break-after:avoid}
h2{margin-top:1.6rem}
figure,.verdict,.tile,tr,details{break-inside:avoid}
figcaption,.cap,tr:nth-last-child(-n+2){break-before:avoid}
thead,tbody tr:nth-child(-n+2){break-after:avoid}
.tiles{grid-template-columns:repeat(5,1fr);gap:.5rem}
.tile{padding:.5rem .6rem}
.tile .value{font-size:1.3rem}
.scroll{overflow:visible;border:0;border-radius:0}
table{font-size:7pt}
thead th{font-size:6.7pt}
thead th:first-child,tbody th{position:static}
th,td{padding:.22rem .4rem;white-space:normal}
.best,.verdict,thead th,.tile{print-color-adjust:exact;-webkit-print-color-adjust:exact}
figure .wide{display:block!important}
figure .narrow{display:none!important}
a{color:inherit;text-decoration:none}
}
`.trim();
