// Whom a broker takes the owner of a certificate for, said by Kafka's own classes: `java -cp 'libs/*' SslNames.java`.
//
// Each line of standard input is "certificate" or "name", a space, ssl.principal.mapping.rules in base64, a space, and a
// certificate in DER or a distinguished name, in base64; "-" for no certificate. Each is answered with one line: "user"
// and the principal's name in hexadecimal UTF-16, "rules" where Kafka refuses the rules, or "refused".

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.Base64;
import java.util.HexFormat;
import javax.net.ssl.SSLPeerUnverifiedException;
import javax.net.ssl.SSLSession;
import org.apache.kafka.common.security.auth.SslAuthenticationContext;
import org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

public final class SslNames {
    public static void main(String[] args) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            System.out.println(answer(words[0], decoded(words[1]), words[2]));
            System.out.flush();
        }
    }

    private static String answer(String kind, byte[] rules, String subject) {
        SslPrincipalMapper mapper;
        try {
            mapper = SslPrincipalMapper.fromRules(new String(rules, StandardCharsets.UTF_8));
        } catch (Throwable refused) {
            return "rules";
        }
        try {
            String name = kind.equals("name")
                ? mapper.getName(new String(decoded(subject), StandardCharsets.UTF_8))
                : principal(mapper, subject);
            return "user " + HexFormat.of().formatHex(name.getBytes(StandardCharsets.UTF_16BE));
        } catch (Throwable refused) { // a stack that a regular expression overflows among them
            return "refused";
        }
    }

    private static String principal(SslPrincipalMapper mapper, String certificate) throws Exception {
        X509Certificate owner = certificate.equals("-") ? null : (X509Certificate) CertificateFactory.getInstance("X.509")
            .generateCertificate(new ByteArrayInputStream(decoded(certificate)));
        SSLSession session = (SSLSession) Proxy.newProxyInstance(
            SslNames.class.getClassLoader(), new Class<?>[] {SSLSession.class}, (proxy, method, arguments) -> {
                if (owner == null) {
                    throw new SSLPeerUnverifiedException("no certificate");
                }
                return owner.getSubjectX500Principal(); // as SSLSession.getPeerPrincipal
            });
        var context = new SslAuthenticationContext(session, InetAddress.getLoopbackAddress(), "SSL");
        return new DefaultKafkaPrincipalBuilder(null, mapper).build(context).getName();
    }

    private static byte[] decoded(String text) {
        return Base64.getDecoder().decode(text);
    }
}
