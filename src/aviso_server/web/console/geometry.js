// Areas and places: their text, and what the map needs to draw them. Pairs are [latitude, longitude], as on the wire.

const STEP = 2; // degrees between two points of an edge, so that it is drawn straight in latitude and longitude

/** The pairs in "(lat,lon,lat,lon,…)" or "[[lat,lon],…]", null if the text is no list of pairs. */
export function parsePairs(text) {
  if (text.trim().startsWith("[")) text = text.replace(/[[\]]/g, "");
  const numbers = text.trim().replace(/^\(|\)$/g, "").split(",").map((part) => (part.trim() === "" ? NaN : Number(part)));
  if (numbers.length < 2 || numbers.length % 2 || numbers.some(Number.isNaN)) return null;
  return Array.from({ length: numbers.length / 2 }, (_, place) => [numbers[2 * place], numbers[2 * place + 1]]);
}

/** A closed ring as "(lat,lon,…)"; the first pair is repeated at the end if it is not there yet. */
export function ringText(pairs) {
  const [first, last] = [pairs[0], pairs[pairs.length - 1]];
  const closed = first[0] === last[0] && first[1] === last[1] ? pairs : [...pairs, first];
  return `(${closed.map((pair) => pair.join(",")).join(",")})`;
}

/** A place as "lat,lon". */
export function placeText(pair) {
  return pair.join(",");
}

/** A pair that a click on the map means: two decimals are a kilometre, which is what a pointer can hit. */
export function rounded([latitude, longitude]) {
  const round = (number, most) => Math.max(-most, Math.min(most, Math.round(number * 100) / 100));
  return [round(latitude, 90), round(longitude, 180)];
}

/** What is to be drawn for an event, null if it has neither area nor points. */
export function shapeOf(identifier) {
  const cloud = identifier.point_cloud;
  if (Array.isArray(cloud)) return pointsShape(cloud);
  const area = identifier.polygon ?? Object.values(identifier).find((value) => /^\(-?[\d.]+,/.test(value));
  const pairs = typeof area === "string" ? parsePairs(area) : area;
  return pairs && pairs.length > 3 ? ringShape(pairs) : null;
}

/** Points as GeoJSON. */
export function pointsShape(pairs) {
  return { type: "MultiPoint", coordinates: pairs.map(([latitude, longitude]) => [longitude, latitude]) };
}

/** A ring as GeoJSON, its edges cut into short pieces. */
export function ringShape(pairs) {
  const ring = [];
  pairs.forEach(([latitude, longitude], place) => {
    const [toLatitude, toLongitude] = pairs[(place + 1) % pairs.length];
    const far = Math.max(Math.abs(toLatitude - latitude), Math.abs(toLongitude - longitude));
    const pieces = Math.max(1, Math.ceil(far / STEP));
    for (let piece = 0; piece < pieces; piece += 1) {
      const part = piece / pieces;
      ring.push([longitude + (toLongitude - longitude) * part, latitude + (toLatitude - latitude) * part]);
    }
  });
  // GeoJSON on a sphere: the inside is to one side of the ring, so the sense of rotation decides which
  if (signedArea(ring) > 0) ring.reverse();
  ring.push(ring[0]);
  return { type: "Polygon", coordinates: [ring] };
}

/** Cells of one degree as [south, west, count] around the middles of events with a shape, and the highest count. */
export function cellsOf(events) {
  const counts = new Map();
  let highest = 1;
  for (const event of events) {
    const [latitude, longitude] = event.middle ??= middleOf(event.shape);
    const key = Math.floor(latitude) * 1000 + Math.floor(longitude);
    const number = (counts.get(key) ?? 0) + 1;
    counts.set(key, number);
    if (number > highest) highest = number;
  }
  const corner = (key) => [Math.round(key / 1000), key - 1000 * Math.round(key / 1000)];
  return [[...counts].map(([key, number]) => [...corner(key), number]), highest];
}

/** The middle of a shape as [latitude, longitude]. */
export function middleOf(shape) {
  const points = shape.type === "Polygon" ? shape.coordinates[0] : shape.coordinates;
  const sums = points.reduce(([x, y], [longitude, latitude]) => [x + longitude, y + latitude], [0, 0]);
  return [sums[1] / points.length, sums[0] / points.length];
}

function signedArea(ring) {
  return ring.reduce((sum, [x, y], place) => {
    const [nextX, nextY] = ring[(place + 1) % ring.length];
    return sum + x * nextY - nextX * y;
  }, 0);
}
