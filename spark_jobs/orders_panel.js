// The orders pipeline's own panel on Sluice's page: the busiest locations, from the routes in
// orders_routes.py.

const SHOWN = 12;

export default async function panel({ get, card, table, element, number }) {
  const locations = new Map();
  for (const { locationId, orderCount, orderType } of await get("/v1/orders/count")) {
    const known = locations.get(locationId) ?? { locationId, GENERAL: 0, RESTAURANT: 0, sum: 0 };
    locations.set(locationId, { ...known, [orderType]: orderCount, sum: known.sum + orderCount });
  }
  const busiest = [...locations.values()].sort((one, other) => other.sum - one.sum).slice(0, SHOWN);
  return card(
    "Orders by location",
    table(
      [
        { title: "Location", cell: (one) => one.locationId },
        { title: "General", number: true, cell: (one) => number(one.GENERAL) },
        { title: "Restaurant", number: true, cell: (one) => number(one.RESTAURANT) },
        { title: "Orders", number: true, cell: (one) => number(one.sum) },
      ],
      busiest,
      { label: "Orders by location", empty: "No orders yet." },
    ),
    element("p", { class: "quiet" }, `${number(locations.size)} locations in all`),
  );
}
